"""Fits a random forest to the digits of scikit-learn: python fit.py --trees 10 --seed 0."""

import argparse
import json

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int, default=10)
parser.add_argument("--depth", type=int, default=None)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
parts = train_test_split(images, labels, test_size=0.3, random_state=args.seed, stratify=labels)
train_images, test_images, train_labels, test_labels = parts
forest = RandomForestClassifier(args.trees, max_depth=args.depth, random_state=args.seed)
forest.fit(train_images, train_labels)
print(json.dumps({"accuracy": forest.score(test_images, test_labels), "trees": args.trees}))
