"""Trains a small random BERT with the Trainer of transformers: python train.py --learning_rate 1e-3 --seed 0 out."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("output_dir", help="folder of checkpoints and of trainer_state.json")
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--max_steps", type=int, default=60)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--resume_from", default="", help="folder with an earlier output_dir")
args = parser.parse_args()


class Majority(Dataset[dict[str, torch.Tensor]]):
    """Rows of bits, each labelled by which of both is more frequent."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(2, (count, 9), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        return {"input_ids": row + 1, "labels": (row.sum() > 4).long()}


set_seed(args.seed)
config = BertConfig(
    vocab_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)  # fmt: skip
settings = TrainingArguments(
    args.output_dir, learning_rate=args.learning_rate, max_steps=args.max_steps, seed=args.seed, eval_strategy="steps",
    eval_steps=20, save_strategy="steps", save_steps=20, logging_steps=20, per_device_train_batch_size=32,
    per_device_eval_batch_size=256, report_to="none", disable_tqdm=True, use_cpu=True,
)  # fmt: skip
trainer = Trainer(
    BertForSequenceClassification(config), settings, train_dataset=Majority(2000, 0), eval_dataset=Majority(500, 1)
)
checkpoints = [*Path(args.resume_from, args.output_dir).glob("checkpoint-*")] if args.resume_from else []
trainer.train(resume_from_checkpoint=bool(checkpoints))
trainer.save_state()
