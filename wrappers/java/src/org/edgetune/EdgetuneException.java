package org.edgetune;

/** A model cannot be loaded or run; the message is one sentence that says what to do. */
public final class EdgetuneException extends RuntimeException {
    public EdgetuneException(String message) {
        super(message);
    }
}
