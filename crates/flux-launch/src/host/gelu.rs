//! GELU.

use super::Kernel;
use crate::{Element, GeluParams};
use rayon::ThreadPool;
use rayon::prelude::*;

/// Elements that are widened together.
const BLOCK: usize = 1024;

impl Kernel for GeluParams {
    /// The parameters name live host memory that nobody else accesses meanwhile.
    unsafe fn run<E: Element>(self, pool: &ThreadPool) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        let values = unsafe { std::slice::from_raw_parts_mut(self.values.as_ptr::<E>(), self.len as usize) };
        pool.install(|| {
            values.par_chunks_mut(BLOCK).for_each(|block| {
                let mut wide = [0.0_f32; BLOCK];
                E::widen(block, &mut wide);
                block.iter_mut().zip(wide).for_each(|(to, x)| {
                    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
                    *to = E::round(0.5 * x * (1.0 + inner.tanh()));
                });
            });
        });
    }
}
