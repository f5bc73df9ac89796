//! Runs a bundle on ones: `cargo run --example run_model -- BUNDLE`.

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
        println!("output {} {}", tensor.name, instance.output::<f32>(index)?[8]);
    }
    // Another thread, another instance, the same model.
    let shared = model.clone();
    let first = std::thread::spawn(move || -> edgetune::Result<f32> {
        let mut own = edgetune::Instance::new(&shared, 1)?;
        own.input_mut::<f32>(0)?.fill(1.0);
        own.run()?;
        Ok(own.output::<f32>(0)?[8])
    });
    println!("thread {}", first.join().expect("no panic")?);
    instance.output::<i64>(0).map(|_| ())
}
