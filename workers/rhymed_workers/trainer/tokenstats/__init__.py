"""What a step computed of its tokens: sums for its metrics, and the numbers of each token, taken along for people."""
