"""A stand-in for timm's train.py, which is not in its wheel, and a way to run commands.

The script does what timm's does with its parser, its config file and its task.
"""

import os
import subprocess
from pathlib import Path

TRAIN_SCRIPT = '''
"""A stand-in for timm's train.py: the same order of imports, parsers, task and checkpoint of arguments."""
import argparse
import torch
import yaml
from torch import nn
from timm import utils
from timm.loss import JsdCrossEntropy
from timm.models import create_model
from timm.task import ClassificationTask, LogitDistillationTask

config_parser = argparse.ArgumentParser(add_help=False)
config_parser.add_argument("-c", "--config", default="")
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="test_resnet")
parser.add_argument("--model-kwargs", nargs="*", default={}, action=utils.ParseKwargs)
parser.add_argument("--mixup", type=float, default=0.0)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--output", required=True)
parser.add_argument("--kd-model-name", default=None)
parser.add_argument("--mixup-off-epoch", type=int, default=0)
parser.add_argument("--aug-splits", type=int, default=0)
parser.add_argument("--jsd-loss", action="store_true", default=False)
parser.add_argument("--device", default="cpu")
parser.add_argument("--no-task", action="store_true")

def main():
    known, remaining = config_parser.parse_known_args()
    if known.config:
        with open(known.config) as f:
            parser.set_defaults(**yaml.safe_load(f))
    args = parser.parse_args(remaining)
    text = yaml.safe_dump(args.__dict__)
    device = utils.init_distributed_device(args)
    if args.no_task:
        return
    torch.manual_seed(args.seed)
    model = create_model(args.model, num_classes=10, **args.model_kwargs)
    splits = max(args.aug_splits, 1)
    criterion = JsdCrossEntropy(num_splits=splits) if args.jsd_loss else nn.CrossEntropyLoss()
    if args.kd_model_name:
        teacher = create_model(args.kd_model_name, num_classes=10)
        task = LogitDistillationTask(student_model=model, teacher_model=teacher, criterion=criterion, device=device)
    else:
        task = ClassificationTask(model=model, criterion=criterion, device=device, verbose=args.rank == 0)
    if args.distributed:
        task.prepare_distributed(device_ids=[device])
    task.get_trainable_module().train()
    torch.manual_seed(args.rank)
    for _ in range(4):
        task(torch.randn(4 * splits, 3, 64, 64), torch.randint(10, (4,)).repeat(splits))["loss"].backward()
    print(f"rank {args.rank} of {args.world_size}: {type(task).__name__}", flush=True)
    if args.rank == 0:
        with open(args.output, "w") as f:
            f.write(text)
    if args.distributed:
        torch.distributed.destroy_process_group()

if __name__ == "__main__":
    main()
'''


def run_command(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment, timeout=300)
