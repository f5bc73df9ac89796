"""Bundles: a compiled model on disk, checked before it is used.

A bundle is a directory, or one ``.tar`` of it (docs/bundle.md describes the format):

* ``manifest.py``  what ``manifest.json`` says, and its validation
* ``assemble.py``  compiled model + model + target -> bundle, written atomically
* ``storage.py``   the files of a bundle, in a directory or in a ``.tar``
* ``arrays.py``    arrays by name in ``.npz`` files
* ``inputs.py``    given, recorded or random inputs, checked
* ``dispatch.py``  which program serves given shapes; padding and cropping
* ``reader.py``    opens a bundle and checks it: files, versions, machine
* ``loading.py``   its library under a name of its own, while the system loads it
"""
