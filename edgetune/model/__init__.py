"""ONNX in, simplified ONNX with static shapes out, in the order of the files here.

    loading.py      path, bytes or ModelProto -> ModelProto, or one clear ModelError
    interface.py    inputs and outputs as the file declares them; fixed and open dimensions
    passes/         one rewrite a file: model -> (model, changed)
    pipeline.py     runs passes, checks each, leaves out the one that breaks a model
    session.py      ONNX Runtime, the reference
    reference.py    seeded random inputs, and the reference's outputs for them
    shapes.py       type and shape of every tensor
    flops.py        parameters and floating-point operations
    variants.py     which fixed shapes a model of varying sizes is prepared for
    rowwise/        a proof that rows are computed apart, so that padding is exact
    padding.py      which dimension is padded
    prepare.py      all of it in order
    registry.py     the public models of the tests and benchmarks

``onnx`` itself is imported by these modules, so the command line imports them inside functions.
"""
