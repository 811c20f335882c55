"""The layers of a traced network with everything that can be folded into them: vectors, masks, normalisation, ReLU.

A `Network` reads the graph once. Each convolution or linear layer becomes a `Layer`, with one `Plain` (weight, bias,
mask) for each member, and takes in what follows it, as far as nobody else reads what is between:

    conv -> batch norm -> + x -> relu        one Layer: weight * scale, bias * scale + shift, added=x, relu=True

A Layer gives the value of the last node that it took in; the nodes before that are `absorbed` and not written. A
normalisation that no layer can take in becomes a `Norm`. Nodes whose value differs between members are in `own`: all
after the first tensor that a member owns, and after the first random draw.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ...methods.adapted_layers import Dropped, JointInput, LowRank, Masked, OwnHead, RankMany, RankOne
from .module_code import inner_type, torch_type
from .tracing import Holder, draws

Shape = tuple[int, ...]


class Plain(NamedTuple):
    """One member's layer as plain tensors: its weight has whatever scales it inside."""

    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None  # the input channels that it reads; None: all


@dataclass
class Folded:
    """A node of the graph that has taken in what follows it at once.

    Args:
        last: the node whose value it gives
        members: the tensors of each; one entry, if all members have the same
    """

    node: fx.Node
    last: fx.Node
    members: list[Any]
    relu: bool = False

    def plain(self, i: int) -> Any:
        """What member i has."""
        return self.members[i if len(self.members) > 1 else 0]


@dataclass
class Layer(Folded):
    """A convolution or linear layer, each member's `Plain`, and a sum and a ReLU behind it."""

    module: nn.Module = field(default_factory=nn.Identity)
    added: fx.Node | None = None
    folded: list[str] = field(default_factory=list)

    @property
    def is_linear(self) -> bool:
        """A linear layer, or else a convolution."""
        return isinstance(self.module, nn.Linear)

    @property
    def groups(self) -> int:
        """The groups of a convolution."""
        return int(getattr(self.module, "groups", 1))


@dataclass
class Norm(Folded):
    """Normalisation with fixed statistics that no layer could take in, x * scale + shift: each member's two vectors."""

    name: str = ""


class Network:
    """A traced network: its graph, one tree of modules per member, and its layers.

    Args:
        own: the tensors of the first tree that are a member's own, by id
        joint: one pass answers for all members
        apart: keep vectors (r, s) and low-rank matrices beside the weights that the members share, which needs less
            memory
    """

    def __init__(
        self, graph: fx.Graph, trees: Sequence[Holder], size: int, own: Collection[int],
        shapes: dict[fx.Node, Shape], *, joint: bool = False, apart: bool = False,
    ):  # fmt: skip
        self.graph, self.trees, self.size, self.shapes = graph, trees, size, shapes
        self.joint, self.apart = joint, apart
        self._drop_before_layers()
        self.own = self._find_owned(own)
        self.layers: dict[fx.Node, Layer] = {}
        self.norms: dict[fx.Node, Norm] = {}
        self.absorbed: set[fx.Node] = set()
        self._own_ids = set(own)
        for node in graph.nodes:
            self._begin(node)
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        for layer in list(self.layers.values()):
            self._take_in(layer)
        for norm in list(self.norms.values()):
            self._take_in_relu(norm)

    # ---------------------------------------------------------------- reading the graph

    def module(self, node: fx.Node, i: int = 0) -> nn.Module:
        """The module that a node calls, as member i has it."""
        return self.trees[i if len(self.trees) > 1 else 0].get_submodule(cast(str, node.target))

    def source(self, layer: Layer) -> tuple[fx.Node, int]:
        """The node that a layer reads, and the dimension of its value in which the channels are."""
        node = layer.node.all_input_nodes[0]
        return node, len(self.shapes[node]) - 1 if layer.is_linear else 1

    def kind(self, node: fx.Node) -> type | None:
        """The class of torch whose code, and no other, the module of a node runs; None if there is none."""
        return torch_type(self.module(node))

    def holds_own(self, module: nn.Module) -> bool:
        """Whether a member owns a tensor of the module."""
        return any(id(tensor) in self._own_ids for tensor in (*module.parameters(), *module.buffers()))

    def _find_owned(self, own: Collection[int]) -> set[fx.Node]:
        """The nodes whose value a member has for itself: by its tensors or by chance."""
        self._own_ids = set(own)
        found: set[fx.Node] = set()
        for node in self.graph.nodes:
            if any(source in found for source in node.all_input_nodes) or self.starts_own(node):
                found.add(node)
        return found

    def starts_own(self, node: fx.Node) -> bool:
        """Whether a member has the value for itself even where all members read the same."""
        if node.op == "call_module":
            module = self.module(node)
            return self.holds_own(module) or any(part.training for part in module.modules())
        if node.op == "get_attr":
            return id(read_attribute(self.trees[0], cast(str, node.target))) in self._own_ids
        return node.op in ("call_function", "call_method") and draws(node)

    def _drop_before_layers(self) -> None:
        """A layer with dropout before it becomes two nodes."""
        for node in list(self.graph.nodes):
            if node.op != "call_module" or not isinstance(module := self.module(node), Dropped):
                continue
            if module.training and plain_type(module) is not None and node.args:
                with self.graph.inserting_before(node):
                    dropped = self.graph.call_function(F.dropout, (node.args[0], module.rate, True))
                node.args = (dropped, *node.args[1:])
                self.shapes[dropped] = self.shapes[dropped.all_input_nodes[0]]
                for tree in self.trees:
                    cast(Dropped, tree.get_submodule(node.target)).rate = 0.0

    def _begin(self, node: fx.Node) -> None:
        if node.target is F.batch_norm:
            self._begin_norm(node)
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return
        module: Any = self.module(node)
        if not isinstance(node.args[0], fx.Node) or node not in self.shapes:
            return
        count = len(self.trees) if (own := self.holds_own(module)) else 1
        if plain_type(module) is not None and not (self.apart and own and isinstance(module, BESIDE_WEIGHTS)):
            members = [plain(self.module(node, i)) for i in range(count)]
            self.layers[node] = Layer(node, node, members, module=module)
        elif torch_type(module) in NORMS and not module.training and module.running_mean is not None:
            norms: list[Any] = [self.module(node, i) for i in range(count)]
            vectors = [scale_and_shift(n.eps, n.running_mean, n.running_var, n.weight, n.bias) for n in norms]
            self.norms[node] = Norm(node, node, vectors, name=str(node.target))

    def _begin_norm(self, node: fx.Node) -> None:
        """Normalisation as a function of a module's tensors."""
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        given = arguments(node, names)
        read = {name: given.get(name) for name in names[1:5]}
        fixed = all(value is None or getattr(value, "op", "") == "get_attr" for value in read.values())
        if not fixed or given.get("training") or read["running_mean"] is None or node not in self.shapes:
            return
        trees = self.trees if any(value in self.own for value in read.values()) else self.trees[:1]
        tensors = ((v and read_attribute(tree, str(v.target)) for v in read.values()) for tree in trees)
        members = [scale_and_shift(given["eps"], *each) for each in cast(Any, tensors)]
        self.norms[node] = Norm(node, node, members, name=str(read["running_mean"].target).rpartition(".")[0])

    # ---------------------------------------------------------------- folding

    def _take_in(self, layer: Layer) -> None:
        """Fold what follows the layer: normalisation, a sum, ReLU."""
        follower = self._only_user(layer.last)
        if follower in self.norms and self._fits(layer, follower):
            self._fold(layer, self.norms.pop(follower))
            follower = self._only_user(layer.last)
        if follower is not None and (other := self._other_summand(layer, follower)) is not None:
            self._move(layer, follower)
            layer.added = other
            follower = self._only_user(follower)
        if follower is not None and is_relu(follower, self):
            self._move(layer, follower)
            layer.relu = True

    def _fits(self, layer: Layer, norm: fx.Node | None) -> bool:
        """A norm of channels that are the layer's: dimension 1; a norm with its own tensors makes the layer own."""
        assert norm is not None
        ndim = len(self.shapes[norm])
        return (ndim == 2 or not layer.is_linear) and (layer.last in self.own or norm not in self.own)

    def _fold(self, layer: Layer, norm: Norm) -> None:
        count = max(len(layer.members), len(norm.members))
        pairs = [(layer.plain(i), *norm.plain(i)) for i in range(count)]
        layer.members = [
            Plain(_by_outputs(weight, scale), shift if bias is None else bias * scale + shift, mask)
            for (weight, bias, mask), scale, shift in pairs
        ]
        layer.folded.append(norm.name)
        self._move(layer, norm.node)

    def _take_in_relu(self, norm: Norm) -> None:
        follower = self._only_user(norm.last)
        if follower is not None and is_relu(follower, self):
            self.norms.pop(norm.last)
            self.absorbed.add(norm.last)
            norm.last, norm.relu = follower, True
            self.norms[follower] = norm

    def _move(self, layer: Layer, node: fx.Node) -> None:
        """The layer gives the value of this node from now on."""
        self.absorbed.add(layer.last)
        del self.layers[layer.last]
        layer.last = node
        self.layers[node] = layer

    def _only_user(self, node: fx.Node) -> fx.Node | None:
        users = list(node.users)
        return users[0] if len(users) == 1 and users[0].op != "output" else None

    def _other_summand(self, layer: Layer, node: fx.Node) -> fx.Node | None:
        """The other term of a sum of two tensors of one shape; None: it is not such a sum, or has a layer already."""
        taken = node in self.layers or node in self.absorbed
        if taken or not is_sum(node) or (layer.last not in self.own) != (node not in self.own):
            return None
        first, second = node.args
        other = second if first is layer.last else first
        if not isinstance(other, fx.Node) or other is layer.last:
            return None
        if self.shapes.get(other) != self.shapes.get(node) or self.shapes.get(layer.last) != self.shapes[node]:
            return None
        return other


def is_relu(node: fx.Node, network: Network) -> bool:
    """Whether the node is a ReLU, however it is written."""
    if node.op == "call_module":
        return network.kind(node) is nn.ReLU
    return node.target in (F.relu, torch.relu) or (node.op == "call_method" and node.target == "relu")


def is_sum(node: fx.Node) -> bool:
    """Whether the node adds two values."""
    added = node.target in (operator.add, torch.add) or (node.op == "call_method" and node.target == "add")
    return added and len(node.args) == 2 and not node.kwargs


def arguments(node: fx.Node, names: Sequence[str]) -> dict[str, Any]:
    """What a node's function is called with, by the names of its parameters."""
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def read_attribute(root: nn.Module, path: str) -> Any:
    """The value of a dotted name."""
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value


def plain_type(module: nn.Module) -> type | None:
    """Linear or a convolution, if the module computes what that does; None otherwise."""
    mixins, kind = getattr(type(module), "_made_of", ((), None))[0], inner_type(module)
    if kind not in PLAIN or set(mixins) - {Masked, OwnHead, *BESIDE_WEIGHTS, JointInput, Dropped}:
        return None
    if len(mixins) > 1 or (isinstance(module, JointInput) and getattr(module, "groups", 1) != 1):
        return None
    fits = kind is nn.Linear or (module.padding_mode == "zeros" and not isinstance(module.padding, str))
    return kind if fits else None


def plain(module: Any) -> Plain:
    """A layer of ours, or of torch, as plain tensors."""
    weight, bias, mask = module.weight.detach(), module.bias, None
    groups = getattr(module, "groups", 1)
    if isinstance(module, RankOne):
        weight = _by_inputs(weight, module.r, groups)
        if module.s is not None:
            weight, bias = _by_outputs(weight, module.s), module.b
    elif isinstance(module, RankMany):
        pairs = zip(module.r, module.s, strict=True)
        weight = torch.stack([_by_outputs(_by_inputs(weight, r, groups), s) for r, s in pairs]).sum(0)
        bias = module.b
    elif isinstance(module, LowRank):
        weight = module.merged()
    elif isinstance(module, JointInput):  # every member reads the same input
        weight = weight.unflatten(1, (module.members, -1)).sum(1)
    elif isinstance(module, Masked) and groups > 1:
        weight = _by_inputs(weight, module.mask, groups)
    elif isinstance(module, Masked):
        mask = module.mask.bool()
    return Plain(weight, None if bias is None else bias.detach(), mask)


def _by_inputs(weight: Tensor, vector: Tensor, groups: int) -> Tensor:
    """The weight, (outputs, inputs / groups, ...), times a number for each input."""
    vector = vector.detach().to(weight.dtype).reshape(groups, 1, -1)
    rows = vector.expand(-1, weight.shape[0] // groups, -1).reshape(weight.shape[0], -1)
    return weight * rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))


def _by_outputs(weight: Tensor, vector: Tensor) -> Tensor:
    return weight * vector.detach().to(weight.dtype).reshape(-1, *[1] * (weight.ndim - 1))


def scale_and_shift(
    eps: float, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A batch normalisation with fixed statistics as x * scale + shift, computed in double precision."""
    scale = (variance.double() + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.detach().double()
    shift = -mean.double() * scale
    if bias is not None:
        shift = shift + bias.detach().double()
    return scale.to(mean.dtype), shift.to(mean.dtype)


BESIDE_WEIGHTS = (RankOne, RankMany, LowRank)  # layers whose members share a weight and own what changes it

PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
