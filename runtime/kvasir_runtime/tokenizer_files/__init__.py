"""The tokenizer of a model as one library's object, from whichever file a checkpoint has. Imports no torch."""
