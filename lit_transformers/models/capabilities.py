"""The capabilities of families: for each of them, the base of the configs and the base of the networks that have it.

An objective asks for a capability and never for a family, so that a family that is defined elsewhere can be trained.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Mixer
from lit_transformers.models.model import ModelConfig, ModelOutput, Network
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks import Stack

M = TypeVar("M", bound=ModelConfig)
N = TypeVar("N", bound="RowNetwork")

APART_NOWHERE = "no layer of this network reads a text apart; set model: deformer"
CACHED_LAYERS = "training.cached_layers"
"""The field that divides a network at a layer, for messages."""


class CausalNetwork(Network):
    """Reads segments in order and represents each symbol from those before it, and from itself.

    ``state`` is a tree of tensors with the batch first, all zeros when empty. ``remembered``: how many symbols before a
    segment attention sees, at most (``MixerConfig.remembered``).
    """

    remembered: int = 0

    @abstractmethod
    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        state: Any = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
        unbroken: int = 0,
    ) -> ModelOutput:
        """Maps symbols (b, t) after those that ``state`` remembers to hidden (b, t, d). ``padding_mask`` is True at
        real symbols and False at padding, which is at the end of a row; None where all are real. keep_layers: return
        all layers' outputs. unbroken: the number of latest symbols in ``state`` that are known to be real and
        of the row's own text, in every row (``TextBatch.unbroken``). Attention to these alone needs no mask."""

    def first_symbols(self, state: Any, read: int, kept: int) -> Any:
        """Hook: returns the state after the first ``kept`` of the ``read`` symbols that were read without padding, or
        None if it does not follow from ``state``, which is the default."""
        return None

    @abstractmethod
    def read_layer(self, hidden: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Prepares an intermediate layer's output for the softmax that all layers share."""


class CausalModelConfig(ModelConfig):
    """Base of the families that predict each symbol of a text from those before it."""

    def build(self, data: DataDescription) -> CausalNetwork:
        raise NotImplementedError


class OrderedRows(NamedTuple):
    """Rows, each with an order in which its symbols are read.

    symbols       (b, t) the original symbols
    places        (b, t) the place of each in the order of its row, from 0; symbols of one place see each other
    at            (b, m) the positions that are represented for predictions, no two of a row the same
    padding_mask  (b, t) True at real symbols, False at padding; None where all are real
    marked        (b, t) True at symbols that the data single out
    segments      (b, t) the number of each symbol's segment, from 0; None where a row is one segment
    reused        how many symbols, from the first on, memory takes; None: all
    backward      symbols stand in reverse, and the remembered symbols follow them in the text
    unbroken      the number of latest symbols in the state that are known to be real
    """

    symbols: Int[Tensor, "b t"]
    places: Int[Tensor, "b t"]
    at: Int[Tensor, "b m"]
    padding_mask: Bool[Tensor, "b t"] | None
    marked: Bool[Tensor, "b t"]
    segments: Int[Tensor, "b t"] | None = None
    reused: int | None = None
    backward: bool = False
    unbroken: int = 0


class OrderedOutput(NamedTuple):
    """The representations of ``OrderedRows``: hidden (b, m, d), from the symbols before each position; content
    (b, t, d), from the symbol at each position as well; the state after the rows; and named losses."""

    hidden: Float[Tensor, "b m d"]
    content: Float[Tensor, "b t d"]
    state: Any
    aux: dict[str, Tensor]


class LayerOutputs(NamedTuple):
    """The vectors of rows at each layer: layers (b, t, d) from the embeddings, with all that is added to them before
    the first layer, to the network's own output; and named losses."""

    layers: tuple[Float[Tensor, "b t d"], ...]
    aux: dict[str, Tensor]


class LowerStates(NamedTuple):
    """The output of the lowest ``layers`` layers of a network for rows: ``states`` (b, t, d)."""

    layers: int
    states: Float[Tensor, "b t d"]


def every_layer(output: ModelOutput) -> LayerOutputs:
    """Returns the outputs of all layers of a network, one at least, that was run with ``keep_layers``."""
    assert output.embedded is not None
    return LayerOutputs((output.embedded, *output.layers, output.hidden), output.aux)


class RowNetwork(Network):
    """Reads whole rows, which do not depend on each other.

    ``apart``: the number of its lowest layers that read the two texts of a row apart, so that the states of a passage
    can be computed before its question is known (``lower_states``, ``read_states``).
    """

    apart: int = 0

    @abstractmethod
    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        """Maps symbols (b, t) to hidden (b, t, d). ``padding_mask`` is True at real symbols and False at padding, which
        is at the end of a row; None where all are real. ``marked`` is True at symbols that the data single out;
        ``segments`` is the number of each symbol's segment, from 0, and None where a row is one segment."""

    def read_first(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        """Hook: reads symbols as ``read_row`` does, and returns the hidden vectors (b, 1, d) of the first symbol of
        each row alone, equal but for rounding. By default it computes those of all symbols."""
        output = self.read_row(symbols, padding_mask, marked, segments)
        return with_fields(output, hidden=output.hidden[:, :1])

    def read_layers(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> LayerOutputs:
        """Hook: reads symbols as ``read_row`` does, and returns the outputs of every layer. Raises ConfigError where a
        family shows the last layer alone, which is the default."""
        raise ConfigError(f"a {type(self).__name__} shows the output of its last layer alone", "task.combined_layers")

    def read_upper_layers(
        self,
        lower: LowerStates,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> LayerOutputs:
        """Hook: reads rows as ``read_layers`` does, given the output of the lowest layers. Returns this output and
        those of the layers above, without the losses of the lowest layers. Raises ConfigError if the network cannot be
        divided there (``require_division``)."""
        self.require_division(lower.layers)
        raise NotImplementedError(f"a {type(self).__name__} reads no output of its lowest layers")

    def require_division(self, layers: int) -> None:
        """Hook: raises ConfigError if ``read_upper_layers`` cannot read the output of the lowest ``layers`` layers,
        which is the default."""
        reason = f"a {type(self).__name__} cannot start from the output of its lowest layers"
        raise ConfigError(f"{reason}; set it to 0, or model.kind to encoder", CACHED_LAYERS)

    def read_ordered(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None,
        order: Int[Tensor, "b t"],
    ) -> ModelOutput:
        """Hook: maps symbols as ``read_row`` does, each of which sees those alone whose place in the ``order`` is not
        after its own, of a network that is built for rows that are ``ordered``. Raises ConfigError where a family has
        none such, which is the default."""
        raise ConfigError(f"a {type(self).__name__} reads no rows in an order; drop data.attention_masks", "model")

    def lower_states(
        self, symbols: Int[Tensor, "b p"], padding_mask: Bool[Tensor, "b p"] | None = None
    ) -> Float[Tensor, "b p d"]:
        """Hook: returns the states (b, p, d) of passages, each with the [SEP] that ends it, above the lowest ``apart``
        layers, for any questions. ``padding_mask`` is True at real symbols and False at padding, which is at the end.
        Raises ConfigError where no layer reads passages apart, which is the default, or their states would depend on
        the lengths of questions."""
        raise ConfigError(APART_NOWHERE, "model")

    def lower_part(self) -> nn.Module:
        """Hook: returns the modules on whose weights ``lower_states`` depend. Raises ConfigError where no layer reads
        passages apart, which is the default."""
        raise ConfigError(APART_NOWHERE, "model")

    def question_states(
        self, questions: Int[Tensor, "b w"], padding_mask: Bool[Tensor, "b w"] | None = None
    ) -> Float[Tensor, "b w d"]:
        """Hook: returns the states (b, w, d) of questions above the lowest ``apart`` layers, for any passages. A
        question has its [CLS], its [SEP] and the padding behind it. ``padding_mask`` is True at real symbols and False
        at padding. Raises ConfigError if no layer reads questions apart, which is the default."""
        raise ConfigError(APART_NOWHERE, "model")

    def read_states(
        self,
        questions: Float[Tensor, "b w d"],
        padding_mask: Bool[Tensor, "b w"] | None,
        states: Float[Tensor, "b p d"],
        states_mask: Bool[Tensor, "b p"] | None = None,
    ) -> ModelOutput:
        """Hook: returns the output of ``read_row`` for rows (b, w + p) of questions and passages, given the
        ``question_states`` and the ``lower_states`` of both. Masks are True at real symbols and False at padding.
        Raises ConfigError if no layer reads passages apart, which is the default, or questions have another width than
        in the rows of its data."""
        raise ConfigError(APART_NOWHERE, "model")

    def read_with(
        self,
        questions: Int[Tensor, "b w"],
        padding_mask: Bool[Tensor, "b w"] | None,
        states: Float[Tensor, "b p d"],
        states_mask: Bool[Tensor, "b p"] | None = None,
    ) -> ModelOutput:
        """Returns the output of ``read_states``, given the symbols of the questions. Raises ConfigError as
        ``question_states`` and ``read_states`` do."""
        return self.read_states(self.question_states(questions, padding_mask), padding_mask, states, states_mask)

    def predict(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n e"]:
        """Hook: maps hidden vectors to those that the softmax of ``tokens`` reads. By default they are the same."""
        return hidden

    def predict_flops(self, length: int) -> int:
        """Hook: forward FLOPs of ``predict`` for ``length`` vectors. By default none."""
        return 0

    def share_embeddings(self, other: RowNetwork) -> None:
        """Hook: embeds symbols, segments and positions by the weights of another network from now on. Raises
        ConfigError where they differ in size, or a family shares none, which is the default."""
        raise ConfigError(f"a {type(self).__name__} shares no embeddings with another network", "model")

    def keep_layers(self, layers: int) -> None:
        """Hook: represents symbols by the output of the lowest ``layers`` layers from now on, before any norm that
        follows the last layer; with 0, by their embeddings. Raises ConfigError where there are not more layers, or a
        family cannot be cut, which is the default."""
        raise ConfigError(f"a {type(self).__name__} cannot be read at a layer", "model")

    def read_in_order(self, rows: OrderedRows, state: Any = None) -> OrderedOutput:
        """Hook: represents the positions ``rows.at`` from the symbols before each in the order of its row, and from
        the symbols that ``state`` remembers. Raises ConfigError where a family predicts in no order, as by default."""
        raise ConfigError(f"a {type(self).__name__} predicts in no order of its rows; set model to encoder", "model")

    def order_only(self) -> list[nn.Parameter]:
        """Hook: returns the parameters that ``read_in_order`` alone uses. By default none."""
        return []

    def in_order_flops(self, length: int, predictions: int, remembered: int = 0) -> int:
        """Hook: forward FLOPs of ``read_in_order`` beyond ``flops`` for ``predictions`` predictions in a row of
        ``length`` tokens after ``remembered`` ones. By default none."""
        return 0

    def prediction_only(self) -> list[nn.Parameter]:
        """Hook: returns the parameters that are not trained where no symbol is predicted. By default those of the
        softmax alone."""
        return self.tokens.softmax_only()


def depth_of(network: RowNetwork) -> int:
    """Returns the number of layers of a network, over all its stacks."""
    return sum(map(len, network.layers().values()))


def lowest_layers(network: N, layers: int) -> N:
    """Returns a copy of a network that has only its lowest ``layers`` layers, whose output ``read_upper_layers`` reads.
    Raises ConfigError if the network cannot be divided there."""
    network.require_division(layers)
    lowest = deepcopy(network)
    lowest.keep_layers(layers)
    return lowest


class RowModelConfig(ModelConfig):
    """Base of the families that read whole rows."""

    @property
    def first_sees_all(self) -> bool:
        """Whether the first symbol of a row sees those after it, as all others do; if not, each symbol sees itself and
        those before it alone."""
        raise NotImplementedError

    @property
    def predicts_in_order(self) -> bool:
        """Hook: whether its network predicts symbols in an order of their row (``RowNetwork.read_in_order``). By
        default it does not."""
        return False

    def build(self, data: DataDescription) -> RowNetwork:
        raise NotImplementedError


class PairNetwork(Network):
    """Reads a source once, and a target symbol by symbol.

    ``decoder`` is the stack that reads targets; ``unreadable`` has the names of its mixers that cannot read one symbol
    at a time, in alphabetical order.
    """

    decoder: Stack
    unreadable: list[str]

    @abstractmethod
    def forward(
        self,
        source: Int[Tensor, "b s"],
        symbols: Int[Tensor, "b t"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        start: Int[Tensor, " b"] | None = None,
    ) -> ModelOutput:
        """Encodes the source and decodes the target; returns hidden (b, t, d) of the target. ``start`` (b,) is the
        position of a target's first symbol, 0 if None."""

    @abstractmethod
    def encode(
        self,
        source: Int[Tensor, "b s"],
        padding_mask: Bool[Tensor, "b s"] | None = None,
        offset: Int[Tensor, " b"] | None = None,
    ) -> ModelOutput:
        """Encodes the source. ``offset`` (b,) is added to its positions."""

    @abstractmethod
    def decode(
        self,
        symbols: Int[Tensor, "n t"],
        source: Float[Tensor, "b s d"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        state: Any = None,
        padding_mask: Bool[Tensor, "n t"] | None = None,
        offset: Int[Tensor, " n"] | None = None,
        start: Int[Tensor, " n"] | None = None,
        unbroken: int = 0,
    ) -> ModelOutput:
        """Decodes target symbols after those that ``state`` remembers, or from the positions ``start`` (n,) on. Each
        row of the source may have several consecutive rows of the target, the same number for every source. Padding is
        at the end of a row. unbroken: as in ``CausalNetwork.forward``."""

    def first_symbols(self, state: Any, read: int, kept: int) -> Any:
        """Hook: returns the decoder's state after the first ``kept`` of the ``read`` target symbols that were read
        without padding, or None if it does not follow from ``state``, which is the default."""
        return None

    @abstractmethod
    def crossings(self) -> list[Mixer]:
        """Returns the decoder's distinct cross mixers, in the order of its layers."""

    @abstractmethod
    def take_hypotheses(self, state: Any, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> Any:
        """Returns the decoder's state of the given target rows, in the given order; ``rows`` are the source rows that
        remain, if some are finished. State of the source is stored once for all target rows that read it."""


class PairModelConfig(ModelConfig):
    """Base of the families that read pairs of a source and a target."""

    def build(self, data: DataDescription) -> PairNetwork:
        raise NotImplementedError


def require(model: ModelConfig, capability: type[M], purpose: str) -> M:
    """Returns the model. Raises ConfigError, which names the kinds that would do, where it lacks the capability.

    purpose: the subject and the verb of the message: "seq2seq trains".
    """
    if isinstance(model, capability):
        return model
    kinds = sorted(kind for kind, family in ModelConfig.kinds.items() if issubclass(family, capability))
    names = " or ".join(f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" for kind in kinds)
    raise ConfigError(f"{purpose} {names}, not a {model.kind}", "model")
