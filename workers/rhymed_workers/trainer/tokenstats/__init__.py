"""What a step computed of each token, taken along as it is made and written after the step, for people."""
