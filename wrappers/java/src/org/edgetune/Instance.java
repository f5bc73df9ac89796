package org.edgetune;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** Memory and threads to run a {@link Model} with; for one thread at a time. */
public final class Instance implements AutoCloseable {
    private final Model model;
    private long handle;

    Instance(Model model, int threads) {
        this.model = model;
        this.handle = create(model.handle(), threads);
    }

    /** The memory of an input, to write to without a copy. Not to be used once the instance is closed. */
    public ByteBuffer input(int index) {
        return buffer(model.handle(), handle(), true, index).order(ByteOrder.nativeOrder());
    }

    /** The memory of an output: its values, until the next run. Not to be used once the instance is closed. */
    public ByteBuffer output(int index) {
        return buffer(model.handle(), handle(), false, index).order(ByteOrder.nativeOrder());
    }

    public void run() {
        run(model.handle(), handle());
    }

    @Override
    public void close() {
        if (handle != 0) free(model.handle(), handle);
        handle = 0;
    }

    private long handle() {
        if (handle == 0) throw new IllegalStateException("the instance is closed");
        return handle;
    }

    private static native long create(long model, int threads);
    private static native ByteBuffer buffer(long model, long instance, boolean input, int index);
    private static native void run(long model, long instance);
    private static native void free(long model, long instance);
}
