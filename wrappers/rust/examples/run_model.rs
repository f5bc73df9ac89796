//! Runs a bundle of float32 tensors on ones: `cargo run --example run_model -- BUNDLE`.

fn main() {
    let folder = std::env::args().nth(1).expect("give the folder of a bundle");
    if let Err(error) = run(&folder) {
        println!("error: {error}");
    }
}

fn run(folder: &str) -> edgetune::Result<()> {
    let model = edgetune::Model::load(folder)?;
    let mut instance = edgetune::Instance::new(&model, 2)?;
    for (index, tensor) in model.inputs().iter().enumerate() {
        println!("input {} {:?}", tensor.name, tensor.shape);
        instance.input_mut::<f32>(index)?.fill(1.0);
    }
    instance.run()?;
    for (index, tensor) in model.outputs().iter().enumerate() {
        println!("output {} {:?}", tensor.name, first(instance.output::<f32>(index)?));
    }
    // Another thread, another instance, the same model.
    let shared = model.clone();
    let there = std::thread::spawn(move || -> edgetune::Result<Vec<f32>> {
        let mut own = edgetune::Instance::new(&shared, 1)?;
        for index in 0..shared.inputs().len() {
            own.input_mut::<f32>(index)?.fill(1.0);
        }
        own.run()?;
        Ok(first(own.output::<f32>(0)?).to_vec())
    });
    println!("thread {:?}", there.join().expect("no panic")?);
    // Values are not read as another type than theirs.
    if let Err(error) = instance.output::<i64>(0) {
        println!("refused: {error}");
    }
    Ok(())
}

fn first(values: &[f32]) -> &[f32] {
    &values[..values.len().min(4)]
}
