package org.edgetune.example

/** PP-OCR's text direction classifier; for one thread at a time. */
class Classifier(threads: Int = 0) : AutoCloseable {
    private var handle: Long = open(threads)

    /** The probability that the text in an image of 3 x 48 x 192 values stands on its head. */
    fun turned(image: FloatArray): Float {
        check(handle != 0L) { "the classifier is closed" }
        return turned(handle, image)
    }

    override fun close() {
        if (handle != 0L) close(handle)
        handle = 0
    }

    companion object {
        init {
            System.loadLibrary("classifier_jni")
        }

        @JvmStatic private external fun open(threads: Int): Long
        @JvmStatic private external fun turned(handle: Long, image: FloatArray): Float
        @JvmStatic private external fun close(handle: Long)
    }
}
