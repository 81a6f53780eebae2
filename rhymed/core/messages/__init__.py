"""All wire types, one module per receiver; docs/protocol.md is generated from them.

A message travels as `[envelope, body, *arrays]`: two MessagePack maps and raw frames. The body's `type` names its
struct. Token arrays are little-endian uint32, log-probs float32. The arrays of several samples are concatenated in
one frame, in the order of the map's list; the lengths in the map split them again. Unknown fields are refused.
"""

from rhymed.core.messages.base import *
from rhymed.core.messages.broker import *
from rhymed.core.messages.orders import *
from rhymed.core.messages.queues import *
from rhymed.core.messages.replies import *
from rhymed.core.messages.samples import *
from rhymed.core.messages.store import *
from rhymed.core.messages.weights import *
from rhymed.core.steps import EVAL as EVAL
