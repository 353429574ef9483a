"""Pruning of attention heads by learned gates: training closes gates, and a head whose gate is closed is pruned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lit_transformers.compression.compression import Compression, CompressionConfig
from lit_transformers.compression.prune_heads import mixers_with_heads, set_to_zero
from lit_transformers.config import PositiveFloat
from lit_transformers.host import HOST, sent
from lit_transformers.mixers.qkv import QKVMixer
from lit_transformers.training.ranks import mean_over_ranks

__all__ = ["GateHeadsConfig", "chance_to_be_open", "drawn_gates", "fixed_gates"]

TEMPERATURE, LOWEST, HIGHEST = 0.33, -0.1, 1.1
"""Of the hard concrete distribution, as in the code of Voita et al.; Louizos et al. have a temperature of 2/3."""
SMALLEST = 1e-6
"""The distance of uniform noise from 0 and from 1."""


@final
class GateHeadsConfig(CompressionConfig, kind="gate_heads"):
    """Learns a gate for each attention head, which multiplies the head's output, and after training sets all weights of
    heads with closed gates to zero (Voita et al. 2019, arXiv:1905.09418, section 5.1). A gate is drawn for each batch
    from a hard concrete distribution (Louizos et al. 2018, arXiv:1712.01312, section 2.2). Evaluation uses its value
    without noise, and after training the output map contains the values of open gates.

    penalty: of the expected number of open gates, in units of the training loss for each head; the higher it is, the
    more heads are pruned. learning_rate: of the gates, by Adam. initial: the location (log alpha) at which gates begin,
    where 2 leaves the gates of a trained network open.
    """

    learns: ClassVar[bool] = True

    penalty: PositiveFloat = 0.01
    learning_rate: PositiveFloat = 0.05
    initial: float = 2.0

    def build(self, task: nn.Module) -> Compression:
        return GateHeads(self, mixers_with_heads(task, self.parameters, "gate_heads"))


@final
class GateHeads(Compression):
    """Multiplies the outputs of heads by gates until training is finished. ``locations`` (h,) are the log alpha of the
    heads of all mixers, one mixer after another."""

    def __init__(self, config: GateHeadsConfig, mixers: Mapping[str, QKVMixer]) -> None:
        self.config, self.mixers = config, [*mixers.values()]
        self.locations = nn.Parameter(torch.full((sum(mixer.heads for mixer in self.mixers),), config.initial))
        self.optimizer = torch.optim.Adam([self.locations], lr=config.learning_rate)
        self.drawn: tuple[Tensor, ...] = ()
        self.hooks: list[RemovableHandle] = []

    def hook(self, number: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]:
        """Returns the hook that multiplies the heads of a mixer by their gates, before the output map."""

        def multiply(linear: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            gates = self.drawn if linear.training else self.of_mixers(fixed_gates(self.locations.detach()))
            return (inputs[0] * gates[number].repeat_interleave(self.mixers[number].head_dim).to(inputs[0].dtype),)

        return multiply

    def of_mixers(self, gates: Float[Tensor, " h"]) -> tuple[Tensor, ...]:
        """Returns the gates of each mixer."""
        return gates.split([mixer.heads for mixer in self.mixers])

    def before_forward(self) -> None:
        if not self.hooks:
            merges = [mixer.merge for mixer in self.mixers]
            self.hooks = [merge.register_forward_pre_hook(self.hook(n)) for n, merge in enumerate(merges)]
        device = self.mixers[0].merge.weight.device
        if self.locations.device != device:
            self.locations.data = self.locations.data.to(device)
            self.optimizer.load_state_dict(self.optimizer.state_dict())  # moves its state to the device
        if not self.mixers[0].training:  # a validation draws nothing
            return
        noise = torch.rand(len(self.locations), device=HOST).clamp(SMALLEST, 1 - SMALLEST)
        self.drawn = self.of_mixers(drawn_gates(self.locations, sent(noise, device)))

    def before_step(self) -> None:
        (self.config.penalty * chance_to_be_open(self.locations).sum()).backward()
        assert self.locations.grad is not None
        self.locations.grad = mean_over_ranks(self.locations.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def finish(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for mixer, gates in zip(self.mixers, self.of_mixers(fixed_gates(self.locations).cpu()), strict=True):
            for head, gate in enumerate(gates.tolist()):
                if gate == 0:
                    set_to_zero(mixer, head)
                else:
                    mixer.merge.weight[:, head * mixer.head_dim : (head + 1) * mixer.head_dim] *= gate

    def state_dict(self) -> dict[str, Tensor]:
        moments = self.optimizer.state_dict()["state"].get(0, {})
        return {"locations": self.locations.detach().clone(), **moments}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        moments = {name: tensor for name, tensor in state.items() if name != "locations"}
        self.locations.data = state["locations"].to(self.locations.device)
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": {0: moments} if moments else {}})


def drawn_gates(locations: Float[Tensor, " h"], noise: Float[Tensor, " h"]) -> Float[Tensor, " h"]:
    """Returns gates from 0 to 1 of hard concrete distributions, given uniform noise (arXiv:1712.01312, equations 10 to
    12)."""
    concrete = ((noise.log() - (1 - noise).log() + locations) / TEMPERATURE).sigmoid()
    return (concrete * (HIGHEST - LOWEST) + LOWEST).clamp(0, 1)


def fixed_gates(locations: Float[Tensor, " h"]) -> Float[Tensor, " h"]:
    """Returns the gates without noise (arXiv:1712.01312, equation 13): 0 for those that are closed."""
    return (locations.sigmoid() * (HIGHEST - LOWEST) + LOWEST).clamp(0, 1)


def chance_to_be_open(locations: Float[Tensor, " h"]) -> Float[Tensor, " h"]:
    """Returns the probability that a gate is not zero (arXiv:1712.01312, section 2.2)."""
    return (locations - TEMPERATURE * math.log(-LOWEST / HIGHEST)).sigmoid()
