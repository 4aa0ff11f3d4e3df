"""What computes: GRPO loss ops that give the same bits at every layout. Backends load when asked for."""

from loss_ops.registry import kernel_registry

__all__ = ["kernel_registry"]
