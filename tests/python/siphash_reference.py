"""SipHash-2-4, written from its definition and apart from the core's."""

from __future__ import annotations

import struct

_MASK = 2**64 - 1


def siphash(key: bytes, message: bytes) -> int:
    """The hash of a message under a key of 16 bytes."""

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & _MASK
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & _MASK
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & _MASK
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & _MASK
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & _MASK

    k = struct.unpack("<2Q", key)
    initial = struct.unpack(">4Q", b"somepseudorandomlygeneratedbytes")
    v = [initial[i] ^ k[i % 2] for i in range(4)]
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
