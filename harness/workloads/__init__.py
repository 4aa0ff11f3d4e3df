"""GRPO training as a workload: policies, rollouts, and trainers whose parameters do not depend on the split."""
