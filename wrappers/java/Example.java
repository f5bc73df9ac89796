import java.nio.FloatBuffer;
import java.util.Arrays;
import org.edgetune.EdgetuneException;
import org.edgetune.Instance;
import org.edgetune.Model;
import org.edgetune.Tensor;

/** Runs a bundle of float32 tensors on ones: {@code java -cp CLASSES -Djava.library.path=FOLDER Example BUNDLE}. */
public final class Example {
    public static void main(String[] arguments) {
        try (Model model = Model.load(arguments[0]); Instance instance = model.instance(2)) {
            for (int i = 0; i < model.inputs(); i++) {
                Tensor tensor = model.input(i);
                System.out.println("input " + tensor.name + " " + tensor.type + Arrays.toString(tensor.shape));
                FloatBuffer values = instance.input(i).asFloatBuffer();
                while (values.hasRemaining()) values.put(1.0f);
            }
            instance.run();
            for (int i = 0; i < model.outputs(); i++) {
                FloatBuffer values = instance.output(i).asFloatBuffer();
                float[] first = new float[Math.min(4, values.remaining())];
                values.get(first);
                System.out.println("output " + model.output(i).name + " " + Arrays.toString(first));
            }
        } catch (EdgetuneException error) {
            System.out.println("error: " + error.getMessage());
        }
    }
}
