"""Plans of primitives for each kind of operator, and the kernel that runs a plan."""

from collage_dnnl.kernels.kernel import PrimitiveKernel, first_refusal, implementation_of
from collage_dnnl.kernels.plan import Plan
from collage_dnnl.kernels.planner import plan, plan_conversion

__all__ = ["Plan", "PrimitiveKernel", "first_refusal", "implementation_of", "plan", "plan_conversion"]
