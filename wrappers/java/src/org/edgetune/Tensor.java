package org.edgetune;

/** An input or output of a model: dense, in row-major order. */
public final class Tensor {
    /** The types of values, in the order of {@code edgetune_dtype}. */
    public enum Type { BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, FLOAT32, FLOAT64 }

    public final String name;
    public final Type type;
    public final long[] shape;

    Tensor(String name, int type, long[] shape) {
        this.name = name;
        this.type = Type.values()[type];
        this.shape = shape;
    }
}
