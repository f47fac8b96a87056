"""What ``bottomless bench train`` starts: ``python -m bottomless._bench.train``."""
