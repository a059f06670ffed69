//! How many blocks push a shard.

/// Blocks of the push kernel that fill a link between GPUs, each with 16 KiB on its way: 16 blocks twice as large stored
/// 353 of 369 GB/s over NVLink (measured on two H200s). No launch has more of them.
const MOST_PUSH_BLOCKS: u32 = 32;

/// The most blocks of a push on a GPU of `sms` SMs, which so many ranks share: an equal part of what runs at once on the SMs
/// that their GEMMs, of `gemm_blocks` blocks each, leave free. One at least, which may have to wait for another to end: a push
/// whose rank shares its GPU waits for nobody.
pub(crate) fn push_blocks(sms: u32, sharing: u32, gemm_blocks: u32, per_sm: u32) -> u32 {
    let free = match sharing {
        1 => sms,
        _ => sms.saturating_sub(sharing.saturating_mul(gemm_blocks)),
    };
    (free.saturating_mul(per_sm) / sharing.max(1)).clamp(1, MOST_PUSH_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::SMS_FOR_COPIES;

    #[test]
    fn pushes_share_the_sms_that_gemms_leave_free() {
        let of_132 = |sharing: u32| push_blocks(132, sharing, (132 - SMS_FOR_COPIES) / sharing, 8);
        for (sharing, blocks) in [(2, 16), (3, 16), (4, 8), (5, 11), (7, 6), (8, 4), (16, 2), (32, 1)] {
            assert_eq!(of_132(sharing), blocks, "{sharing} ranks");
            assert!(sharing * blocks <= (132 - sharing * (128 / sharing)) * 8, "{sharing} ranks");
        }
        assert_eq!(of_132(100), 2); // one SM each is all that their GEMMs take
        assert_eq!(of_132(128), 1);
        assert_eq!(push_blocks(132, 8, 2, 8), MOST_PUSH_BLOCKS); // a budget of 16 SMs
        assert_eq!(push_blocks(132, 1, 132, 8), MOST_PUSH_BLOCKS);
        assert_eq!(push_blocks(0, 8, 0, 0), 1);
    }
}
