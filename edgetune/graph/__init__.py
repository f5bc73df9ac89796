"""From prepared ONNX to a tuned library: import, layout, fusion, tasks, code generation.

In order: ``importer`` (ONNX to Relax), ``blocked`` (layouts and packed weights), ``lower`` (kernels and tasks),
``merge`` (one module for all sizes of a model), ``compile`` (schedules applied, library linked).
"""
