"""LoRA adapters: which layers they change, what their files say, and how they are merged into a model's weights."""
