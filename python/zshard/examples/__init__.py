"""Examples that run as they are: python -m zshard.examples.gpt2"""
