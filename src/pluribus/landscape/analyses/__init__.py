"""What the papers look at inside their networks: sparsity, masks, packing, and how settings change a method."""
