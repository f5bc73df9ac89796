package org.edgetune.example

import android.app.Activity
import android.os.Bundle
import android.widget.TextView
import kotlin.concurrent.thread

class MainActivity : Activity() {
    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        val text = TextView(this)
        setContentView(text)
        // A run takes a millisecond, loading a few: off the main thread all the same.
        thread {
            val said = try {
                Classifier().use { classifier ->
                    val image = FloatArray(3 * 48 * 192)
                    val probability = classifier.turned(image)
                    val start = System.nanoTime()
                    repeat(RUNS) { classifier.turned(image) }
                    val milliseconds = (System.nanoTime() - start) / 1e6 / RUNS
                    "turned: %.3f\n%.3f ms a run".format(probability, milliseconds)
                }
            } catch (error: RuntimeException) {
                error.message ?: "failed"
            }
            runOnUiThread { text.text = said }
        }
    }

    private companion object {
        const val RUNS = 100
    }
}
