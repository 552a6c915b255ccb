"""Networks that draw random numbers by torch's functions, in all the ways that are drawn by position."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 12
Before = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A Linear layer, some function of its output that draws, and another Linear layer."""

    def __init__(self, between: Before, layer: nn.Module | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(width, 3)
        self.between, self.layer = between, layer or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


def sequence(x: Tensor, batch_first: bool = True) -> Tensor:
    """Return three tokens of four values, from each row."""
    tokens = x.view(-1, 3, 4)
    return tokens if batch_first else tokens.transpose(0, 1)


def flat(tokens: Tensor, batch_first: bool = True) -> Tensor:
    """Return a row of each sequence."""
    return (tokens if batch_first else tokens.transpose(0, 1)).flatten(1)


def recurrent(kind: type[nn.RNNBase], batch_first: bool = True, **options: Any) -> Net:
    """Return a network with three recurrent layers and dropout between them."""
    layer = kind(4, 4, 3, dropout=0.4, batch_first=batch_first, **options)
    width = 24 if options.get("bidirectional") else 3 * (options.get("proj_size") or 4)
    return Net(lambda net, x: flat(net.layer(sequence(x, batch_first))[0], batch_first), layer, width)


def encoder(batch_first: bool = True, *, causal: bool = False, mask: bool = False, padding: bool = False) -> Net:
    """Return a network with a layer of a transformer, and masks."""

    def run(net: Net, x: Tensor) -> Tensor:
        options: dict[str, Any] = {"is_causal": causal}
        if causal or mask:
            options["src_mask"] = nn.Transformer.generate_square_subsequent_mask(3).isinf()
        if padding:
            options["src_key_padding_mask"] = F.pad(x[:, :2] > 0, (1, 0))
        return flat(net.layer(sequence(x, batch_first), **options), batch_first)

    return Net(run, nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=batch_first))


def attention(batch_first: bool, need_weights: bool) -> Net:
    """Return a network with an attention layer."""

    def run(net: Net, x: Tensor) -> Tensor:
        tokens = sequence(x, batch_first)
        return flat(net.layer(tokens, tokens, tokens, need_weights=need_weights)[0], batch_first)

    return Net(run, nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=batch_first))


def _two_orders(net: Net, x: Tensor) -> Tensor:
    return net.layer[0](sequence(x))[0].flatten(1) + flat(net.layer[1](sequence(x, False))[0], False)


def _cross_attention(net: Net, x: Tensor) -> Tensor:
    tokens = sequence(x)
    return net.layer(tokens[:, :2], tokens).flatten(1)


def _grouped(net: Net, x: Tensor) -> Tensor:
    heads = x.view(-1, 2, 3, 2)
    queries = torch.cat((heads, heads * 2), 1)
    return F.scaled_dot_product_attention(queries, heads, heads, dropout_p=0.3, enable_gqa=True)[:, :2].flatten(1)


def _drop_path(net: Net, x: Tensor) -> Tensor:
    return x * x.new_empty(len(x), 1).bernoulli_(0.7).div_(0.7)


def _between(between: Callable[[Tensor], Tensor]) -> Callable[[], Net]:
    return lambda: Net(lambda net, x: between(x))


NETWORKS: dict[str, Callable[[], Net]] = {
    "lstm": lambda: recurrent(nn.LSTM),
    "lstm, sequence first": lambda: recurrent(nn.LSTM, False),
    "lstm, both ways": lambda: recurrent(nn.LSTM, bidirectional=True),
    "lstm, both ways, sequence first": lambda: recurrent(nn.LSTM, False, bidirectional=True),
    "lstm, projected": lambda: recurrent(nn.LSTM, proj_size=2),
    "lstm, without biases": lambda: recurrent(nn.LSTM, bias=False),
    "gru": lambda: recurrent(nn.GRU),
    "gru, both ways, sequence first": lambda: recurrent(nn.GRU, False, bidirectional=True),
    "rnn": lambda: recurrent(nn.RNN, False),
    "rnn, relu": lambda: recurrent(nn.RNN, nonlinearity="relu"),
    "lstms of both orders": lambda: Net(
        _two_orders, nn.ModuleList([nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True), nn.LSTM(4, 4, 2, dropout=0.3)])
    ),
    "encoder": encoder,
    "encoder, sequence first": lambda: encoder(False),
    "encoder, causal": lambda: encoder(causal=True),
    "encoder, causal, sequence first": lambda: encoder(False, causal=True),
    "encoder, masked": lambda: encoder(mask=True),
    "encoder, padded": lambda: encoder(padding=True),
    "encoder, masked and padded, sequence first": lambda: encoder(False, mask=True, padding=True),
    "decoder": lambda: Net(_cross_attention, nn.TransformerDecoderLayer(4, 2, 8, dropout=0.3, batch_first=True), 8),
    "attention": lambda: attention(True, False),
    "attention, sequence first": lambda: attention(False, False),
    "attention with weights": lambda: attention(True, True),
    "attention with weights, sequence first": lambda: attention(False, True),
    "attention of grouped heads": lambda: Net(_grouped),
    "dropout": _between(lambda x: F.dropout(x, 0.3)),
    "dropout in place": _between(lambda x: F.dropout(x * 1, 0.3, inplace=True)),
    "dropout of channels, 1d": _between(lambda x: F.dropout1d(sequence(x), 0.3).flatten(1)),
    "dropout of channels, 2d": _between(lambda x: F.dropout2d(x.view(-1, 3, 2, 2), 0.3).flatten(1)),
    "dropout of channels, 3d": _between(lambda x: F.dropout3d(x.view(-1, 3, 2, 2, 1), 0.3).flatten(1)),
    "alpha dropout": lambda: Net(lambda net, x: net.layer(x), nn.AlphaDropout(0.3)),
    "alpha dropout of channels": _between(lambda x: F.feature_alpha_dropout(sequence(x), 0.3, True).flatten(1)),
    "dropout, sequence first": _between(lambda x: flat(F.dropout(sequence(x, False), 0.3), False)),
    "dropout layer, sequence first": lambda: Net(lambda net, x: flat(net.layer(sequence(x, False)), False),
                                                 nn.Dropout(0.3)),
    "dropout of weights": lambda: Net(lambda net, x: F.linear(x, F.dropout(net.first.weight, 0.3))),
    "tokens as rows": _between(lambda x: F.dropout(sequence(x).flatten(0, 1), 0.3).view(-1, WIDTH)),
    "noise of a VAE": _between(lambda x: x + torch.randn_like(x) * x.exp().sqrt()),
    "normal distribution": _between(lambda x: torch.distributions.Normal(x, 1.0).rsample()),
    "uniform": _between(lambda x: x * torch.rand(len(x), 1)),
    "uniform, filled": _between(lambda x: x * torch.empty_like(x).uniform_(-1, 2)),
    "gumbel": _between(F.gumbel_softmax),
    "rrelu": lambda: Net(lambda net, x: net.layer(x), nn.RReLU()),
    "bernoulli": _between(lambda x: x * torch.bernoulli(x.sigmoid())),
    "drop path": lambda: Net(_drop_path),
    "one number for the batch": _between(lambda x: x * torch.rand(1)),
    "a branch for the batch": _between(lambda x: x * torch.rand(()) if torch.rand(()) < 0.5 else F.dropout(x, 0.3)),
}  # fmt: skip
