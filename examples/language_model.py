"""A small transformer learns to write, letter by letter, from a page of text next to this file.

    python examples/language_model.py                          # alone
    weft run --workers 2 examples/language_model.py            # two workers, same loss curve

Stop it with Ctrl-C and start it again with a different number of workers: it resumes where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import weft

TEXT = Path(__file__).parent / "text" / "loom.txt"
CONTEXT = 48


class Passages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every passage of CONTEXT letters, and the same passage shifted by one letter."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        number_of = {letter: number for number, letter in enumerate(self.alphabet)}
        self.letters = torch.tensor([number_of[letter] for letter in text])

    def __len__(self) -> int:
        return len(self.letters) - CONTEXT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        passage = self.letters[index : index + CONTEXT + 1]
        return passage[:-1], passage[1:]


class LetterModel(nn.Module):
    """A two-layer transformer. The embedding is also the output layer: one tensor, read twice."""

    def __init__(self, num_letters: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_letters, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        length = letters.shape[1]
        hidden = self.embedding(letters) + self.position[:length]
        hidden = self.layers(hidden, mask=self.mask[:length, :length], is_causal=True)
        return F.linear(hidden, self.embedding.weight)


@torch.no_grad()
def write(model: nn.Module, passages: Passages, num_letters: int) -> str:
    """Continue the beginning of the text, always with the most likely next letter."""
    model.eval()
    letters = passages.letters[:CONTEXT].tolist()
    for _ in range(num_letters):
        guess = model(torch.tensor([letters[-CONTEXT:]]))[0, -1].argmax()
        letters.append(int(guess))
    return "".join(passages.alphabet[number] for number in letters[CONTEXT:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32, help="global batch size, over all workers")
    options = parser.parse_args()
    passages = Passages(TEXT.read_text(encoding="utf-8"))

    with weft.session() as run:
        model = LetterModel(len(passages.alphabet)).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        weft.overlap(model, optimizer)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
        data = run.loader(passages, batch_size=options.batch_size)
        run.resume(model=model, optimizer=optimizer, schedule=schedule, data=data)
        for letters, next_letters in run.steps(data, max_steps=options.steps):
            optimizer.zero_grad()
            guesses = model(letters)
            loss = F.cross_entropy(guesses.flatten(0, 1), next_letters.flatten())
            loss.backward()
            optimizer.step()
            schedule.step()
            run.log(loss=loss)
            if run.rank == 0 and run.step % 20 == 0:
                print(f"step {run.step}: loss {loss.item():.3f}")
        if run.rank == 0 and not run.stopped:
            print("it writes:", write(model.cpu(), passages, 80))


if __name__ == "__main__":
    main()
