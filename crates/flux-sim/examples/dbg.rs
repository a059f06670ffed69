use flux_sim::*;
use std::time::Instant;
fn main() {
    for (preset, nodes) in [("hgx-h200", 32), ("hgx-h200", 64), ("hgx-h200", 128), ("8xa100-pcie", 128)] {
        let machine = Machine::preset(preset, nodes).unwrap();
        for op in [Op::AgGemm, Op::GemmRs] {
            let problem = Problem { op, m: 131072, n: 1024, k: 8192, element_bytes: 2 };
            let t = Instant::now();
            let o = simulate(&machine, &problem, &Plan::new(Path::Fused)).unwrap();
            println!("{preset} {} {}: {:.0} us in {:.2} s", machine.gpus(), op.name(), o.total_us, t.elapsed().as_secs_f64());
        }
    }
}
