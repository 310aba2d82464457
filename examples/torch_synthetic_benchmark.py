"""Speed of training on random data, with the options of Horovod's benchmark of the same name.

horovodrun -np 2 python examples/torch_synthetic_benchmark.py --batch-size 8
horovodrun -np 2 python examples/torch_synthetic_benchmark.py --model bert-base --batch-size 4
horovodrun -np 2 python examples/torch_synthetic_benchmark.py --batch-size 8 --ddp    # torch's own, over Gloo
python examples/torch_synthetic_benchmark.py --batch-size 8                           # one process, the same script

Models: resnet50, resnet-tiny, bert-base, bert-tiny; with torchvision installed, also those of torchvision.models.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import statistics
import timeit
from collections.abc import Callable
from datetime import timedelta

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 1000
WORDS = 30522
POSITIONS = 512


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut: (n, inputs, h, w) -> (n, 4 * width, h / stride, w / stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with bottlenecks; four stages of (3, 4, 6, 3) blocks from width 64 on are ResNet-50."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, 1)]
        inputs = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
                inputs = 4 * (width << stage)
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (n, 3, h, w) -> scores of the classes (n, 1000)."""
        scores: torch.Tensor = self.head(self.body(x))
        return scores


class Bert(nn.Module):
    """An encoder of BERT's build that guesses words: the embedding of words is also the last layer."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, positions: int = POSITIONS) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(WORDS))
        for embedding in (self.words, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Words (n, length) -> scores of the vocabulary for each (n, length, 30522)."""
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.encoder(self.norm(self.words(x) + self.positions(places)))
        return F.linear(hidden, self.words.weight, self.bias)


OWN: dict[str, Callable[[], nn.Module]] = {
    "resnet50": ResNet,
    "resnet-tiny": lambda: ResNet((1, 1, 1, 1), 8),
    "bert-base": Bert,
    "bert-tiny": lambda: Bert(2, 64, 2),
}


def build_model(name: str) -> nn.Module:
    """The model of that name, torchvision's where that is installed; ValueError for one that nobody knows."""
    if importlib.util.find_spec("torchvision"):
        import torchvision

        if name in torchvision.models.list_models():
            found: nn.Module = torchvision.models.get_model(name)
            return found
    if name not in OWN:
        raise ValueError(f"unknown model {name}: choose one of {', '.join(OWN)}, or install torchvision for its models")
    return OWN[name]()


def reads_words(name: str) -> bool:
    """Whether the model takes text, not images."""
    return name.startswith("bert")


def build_batch(name: str, size: int, image_size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and targets: images (size, 3, image_size, image_size) or words (size, length)."""
    if reads_words(name):
        return torch.randint(WORDS, (size, length)), torch.randint(WORDS, (size * length,))
    return torch.randn(size, 3, image_size, image_size), torch.randint(CLASSES, (size,))


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the last dimension of the model's scores."""
    scores = model(inputs)
    return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets)


def join_gloo() -> None:
    """Starts torch.distributed among the ranks; rank 0 says where it listens."""
    store = None
    if hvd.rank() == 0:
        host = socket.gethostname() if hvd.cross_size() > 1 else "127.0.0.1"
        store = torch.distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    host, port = hvd.broadcast_object((store.host, store.port) if store else None, root_rank=0)
    store = store or torch.distributed.TCPStore(host, port, timeout=timedelta(seconds=60))
    torch.distributed.init_process_group("gloo", store=store, rank=hvd.rank(), world_size=hvd.size())


def make_step(arguments: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """One step of training, gradients reduced by Horovod's optimizer or by torch's DistributedDataParallel."""
    model = build_model(arguments.model).to(device)
    inputs, targets = build_batch(arguments.model, arguments.batch_size, arguments.image_size, arguments.seq_length)
    inputs, targets = inputs.to(device), targets.to(device)
    # Adasum finds the scale of the step by itself.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (1 if arguments.use_adasum else hvd.size()))
    if arguments.ddp:
        join_gloo()
        model = nn.parallel.DistributedDataParallel(model)
    else:
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
            op=hvd.Adasum if arguments.use_adasum else hvd.Average,
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()
        optimizer.step()

    return step


def show(text: str) -> None:
    """Prints on rank 0."""
    if hvd.rank() == 0:
        print(text, flush=True)


def measure(arguments: argparse.Namespace, step: Callable[[], None], unit: str, device: str) -> None:
    """Repeats steps, and prints how many images or sequences a rank and all ranks saw in a second."""
    show("Running warmup...")
    timeit.timeit(step, number=arguments.num_warmup_batches)
    show("Running benchmark...")
    speeds = []
    for number in range(arguments.num_iters):
        seconds = timeit.timeit(step, number=arguments.num_batches_per_iter)
        speeds.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        show(f"Iter #{number}: {speeds[-1]:.1f} {unit.lower()} per {device}")
    totals = hvd.allreduce(torch.tensor(speeds, dtype=torch.float64), op=hvd.Sum).tolist()
    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    show(f"{unit} per {device}: {mean:.1f} +-{spread:.1f}")
    mean, spread = statistics.mean(totals), 1.96 * statistics.pstdev(totals)
    show(f"Total {unit.lower()} on {hvd.size()} {device}(s): {mean:.1f} +-{spread:.1f}")


def parse_arguments() -> argparse.Namespace:
    """The command line; ends the program where options contradict each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in half precision")
    parser.add_argument("--model", default="resnet50", help="what is trained")
    parser.add_argument("--batch-size", type=int, default=32, help="images or sequences per rank and step")
    parser.add_argument("--image-size", type=int, default=32, help="height and width; Horovod's benchmark had 224")
    parser.add_argument("--seq-length", type=int, default=128, help="words in a sequence, at most 512")
    parser.add_argument("--num-warmup-batches", type=int, default=10, help="steps that are not counted")
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps in each measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--no-cuda", action="store_true", help="use the CPU also where there is a GPU")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum")
    parser.add_argument("--ddp", action="store_true", help="use torch's DistributedDataParallel with Gloo instead")
    parser.add_argument("--threads", type=int, help="compute threads per rank; default: its share of the cores")
    arguments = parser.parse_args()
    if arguments.ddp and (arguments.fp16_allreduce or arguments.use_adasum):
        parser.error("--ddp goes with neither --fp16-allreduce nor --use-adasum")
    if reads_words(arguments.model) and arguments.seq_length > POSITIONS:
        parser.error(f"--seq-length is at most {POSITIONS}")
    return arguments


def main() -> None:
    """Builds the model, measures, prints on rank 0."""
    arguments = parse_arguments()
    hvd.init()
    on_gpu = not arguments.no_cuda and torch.cuda.is_available()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    torch.set_num_threads(arguments.threads or max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(42 + hvd.rank())
    kind = "GPU" if on_gpu else "CPU"
    show(f"Model: {arguments.model}\nBatch size: {arguments.batch_size}\nNumber of {kind}s: {hvd.size()}")
    step = make_step(arguments, device)
    measure(arguments, step, "Seq/sec" if reads_words(arguments.model) else "Img/sec", kind)
    if arguments.ddp:
        torch.distributed.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
