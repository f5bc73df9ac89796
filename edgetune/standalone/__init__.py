"""Models as one library that needs nothing of TVM: the program, its C source, the runtime, the loader.

A static-shape model is a fixed sequence of kernel calls on tensors whose places are known beforehand
(``program``). That sequence is written out as C tables (``emit``), compiled and linked with the kernels and
a small runtime (``compiler``, ``build``; the C sources are in ``c/``), and loaded through its C API
(``model``). Nothing here imports TVM.
"""
