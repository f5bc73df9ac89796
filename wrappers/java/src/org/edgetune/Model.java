package org.edgetune;

import java.util.concurrent.atomic.AtomicLong;

/**
 * A standalone model. Safe from several threads; each creates an {@link Instance} of its own.
 *
 * <pre>{@code
 * try (Model model = Model.load("/path/of/bundle"); Instance instance = model.instance(2)) {
 *     instance.input(0).asFloatBuffer().put(pixels);
 *     instance.run();
 *     instance.output(0).asFloatBuffer().get(scores);
 * }
 * }</pre>
 *
 * The native library {@code edgetune_jni} is loaded from the JVM's library path.
 */
public final class Model implements AutoCloseable {
    static {
        System.loadLibrary("edgetune_jni");
    }

    private final AtomicLong handle;

    private Model(long handle) {
        this.handle = new AtomicLong(handle);
    }

    /** The model of a bundle's folder; of several bundles in one, the best that this CPU can run. */
    public static Model load(String folder) {
        return new Model(openBest(folder));
    }

    /**
     * A library by its path, or by its name where the app brought it (Android: {@code "libclassifier.so"}).
     *
     * @param weights the path of the file of weights; null where they are embedded.
     */
    public static Model loadLibrary(String library, String weights) {
        return new Model(open(library, weights));
    }

    /** An instance with memory and threads of its own; 0 threads: as many as the model was compiled for. */
    public Instance instance(int threads) {
        return new Instance(this, threads);
    }

    public String name() {
        return name(handle());
    }

    public int inputs() {
        return count(handle(), true);
    }

    public int outputs() {
        return count(handle(), false);
    }

    public Tensor input(int index) {
        return tensor(handle(), true, index);
    }

    public Tensor output(int index) {
        return tensor(handle(), false, index);
    }

    /** Its instances must be closed before. */
    @Override
    public void close() {
        long closed = handle.getAndSet(0);
        if (closed != 0) close(closed);
    }

    long handle() {
        long open = handle.get();
        if (open == 0) throw new IllegalStateException("the model is closed");
        return open;
    }

    private static native long openBest(String folder);
    private static native long open(String library, String weights);
    private static native void close(long model);
    private static native String name(long model);
    private static native int count(long model, boolean inputs);
    private static native Tensor tensor(long model, boolean input, int index);
}
