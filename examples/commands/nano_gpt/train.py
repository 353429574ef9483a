"""A small GPT on the bytes of a text, in one file, without Lightning: python train.py --lr 3e-3 --seed 0."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-3, help="learning rate of AdamW")
parser.add_argument("--max_iters", type=int, default=60, help="number of updates")
parser.add_argument("--n_layer", type=int, default=1, help="number of blocks")
parser.add_argument("--n_embd", type=int, default=32, help="width of the network")
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--eval_interval", type=int, default=20)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_num_threads(1)
BLOCK = 32
# A text that needs no download: numbers in words, whose order repeats.
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEXT = " ".join(WORDS[i * i % 10] for i in range(4000)).encode()
DATA = torch.tensor(list(TEXT))
TRAIN, VAL = DATA[: len(DATA) * 9 // 10], DATA[len(DATA) * 9 // 10 :]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(args.n_embd), nn.LayerNorm(args.n_embd)
        self.qkv, self.out = nn.Linear(args.n_embd, 3 * args.n_embd), nn.Linear(args.n_embd, args.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(args.n_embd, 4 * args.n_embd), nn.GELU(), nn.Linear(4 * args.n_embd, args.n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (part.view(b, t, 2, d // 2).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, args.n_embd), nn.Embedding(BLOCK, args.n_embd)
        self.blocks = nn.Sequential(*(Block() for _ in range(args.n_layer)))
        self.norm, self.head = nn.LayerNorm(args.n_embd), nn.Linear(args.n_embd, 256)

    def forward(self, symbols: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(symbols) + self.positions(torch.arange(symbols.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - BLOCK - 1, (args.batch_size,), generator=generator)
    rows = torch.stack([data[start : start + BLOCK + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def val_loss(model: GPT) -> float:
    generator = torch.Generator().manual_seed(0)
    return sum(float(model(*batch(VAL, generator))) for _ in range(4)) / 4


model = GPT()
print(f"number of parameters: {sum(p.numel() for p in model.parameters())}")
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
generator = torch.Generator().manual_seed(args.seed)
for step in range(1, args.max_iters + 1):
    loss = model(*batch(TRAIN, generator))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % args.eval_interval == 0 or step == args.max_iters:
        print(f"step {step}: train loss {loss.item():.4f}, val loss {val_loss(model):.4f}")
