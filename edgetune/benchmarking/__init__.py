"""Timing bundles: beside another runtime, and kernel by kernel.

* ``fixed_work.py``  a fixed piece of work that shows when the machine itself changes its speed
* ``results.py``     what a benchmark returns
* ``rounds.py``      two sides or more, alternating, each in a process of its own
* ``multiply_add.py``  what the arithmetic units do at best
* ``roofline.py``    what the machine can do at best: arithmetic and memory bandwidth
* ``agreement.py`` whether the kernels' times add up to the model's latency
* ``profile.py``     time of each kernel of a bundle, and how far it is from that
"""
