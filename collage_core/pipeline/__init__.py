"""The steps joined: costs of candidates, calibration, end-to-end comparison, `optimize`."""
