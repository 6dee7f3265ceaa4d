"""What can go wrong in the engine; each class one line, with typed fields where a program needs them."""


class EngineError(Exception):
    """Root of the engine's errors; its text is one line that a person can act on."""


class ModelError(EngineError):
    """The model cannot be found, read or run by this engine; a change of `model:` fixes it."""


class UnavailableError(EngineError):
    """What the configuration names is not to be had now, a device or a hub: without any edit it may be later."""


class OutOfMemoryError(EngineError):
    """The device or host has too little memory for this configuration; the text names the key to lower."""


class InvariantError(EngineError):
    """A state machine was driven against its numbered invariants: a fault of ours, never of the input."""


class ChannelClosedError(EngineError):
    """The process at the other end of a channel is gone."""
