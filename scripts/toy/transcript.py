"""Prints what a model answers to the thirty prompts it was never trained on, as Markdown.

    python3 transcript.py target/release/llama-rs models/toy-llama.gguf
"""

import subprocess
import sys

from prompts import HELD_OUT, split


def main():
    program, model = sys.argv[1:]
    for prompt in split(HELD_OUT):
        command = [program, "chat", "-m", model, "-s", "1", "-n", "200", "--quiet"]
        answer = subprocess.run(command, input=prompt + "\n", capture_output=True, text=True, check=True).stdout
        print(f"**{prompt}**\n\n{answer.strip()}\n")


if __name__ == "__main__":
    main()
