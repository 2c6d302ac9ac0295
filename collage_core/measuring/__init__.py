"""What one asks of a machine: candidates' costs, bounds of what is not measured, contests, calibration."""
