"""Timing bundles: beside another runtime, and kernel by kernel.

* ``fixed_work.py``  a fixed piece of work that shows when the machine itself changes its speed
* ``results.py``     what a benchmark returns
* ``rounds.py``      two sides, alternating, each in a process of its own
* ``roofline.py``    what the machine can do at best: arithmetic and memory bandwidth
* ``profile.py``     time of each kernel of a bundle, and how far it is from that
"""
