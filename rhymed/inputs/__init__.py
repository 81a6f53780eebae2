"""What a run reads before it starts: dataset rows, the model's folder and its tokenizer."""
