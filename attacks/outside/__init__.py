"""What attacks need: a daemon of their own, neighbours with verified flows, and clients of its protocols.

Written from the specifications. Nothing here shares code with the engine, and nothing is needed beside Python's
standard library and a C compiler.
"""
