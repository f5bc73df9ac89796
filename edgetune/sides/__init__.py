"""Sides: ways to run a model, each in a process of its own, behind one small protocol.

Comparing and benchmarking put two of them side by side. Processes of their own, because two thread
pools in one process spin against each other, and because a crash of one must end in a message.

* ``base.py``         what a side is; the registry; a side of one's own is a name or a ``.py`` file
* ``bundle_side.py``  an edgetune bundle
* ``onnxruntime_side.py``  ONNX Runtime
* ``openvino_side.py``, ``mnn_side.py``, ``ncnn_side.py``, ``litert_side.py``, ``iree_side.py``  others, where installed
* ``converting.py``   runs the converters of runtimes that do not read ONNX files
* ``worker.py``       the child process: reads requests, answers with one JSON object a line
* ``process.py``      the parent's end: starts, asks, times out, reports a crash
* ``device_side.py``  the same questions to a bundle on another machine, over a leased session
* ``device_engines.py``  what runs the bundle's library there: TVM's virtual machine, or an adapter
"""
