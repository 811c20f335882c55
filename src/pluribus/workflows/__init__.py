"""Work of several rooms together: a predictor trained or upgraded, checkpoints aligned, material for the landscape."""
