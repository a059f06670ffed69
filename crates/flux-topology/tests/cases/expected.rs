//! What each file of this folder says, from EXPECTED.md.

/// What a file says.
pub(crate) struct Expected {
    pub(crate) file: &'static str,
    pub(crate) gpus: usize,
    /// Classes and their pairs, `03` for GPU 0 and GPU 3; `*` is every pair that is not named.
    pub(crate) pairs: &'static str,
    /// The NUMA node of each GPU; `?` where the file does not say.
    pub(crate) numa: &'static str,
    pub(crate) nics: usize,
    /// The GPUs near each card, by the card's place; cards that are not named are near none.
    pub(crate) near: &'static [(usize, &'static [usize])],
    pub(crate) nvswitch: Option<bool>,
    pub(crate) order: &'static str,
    /// The groups of the order, where EXPECTED.md names them; else empty.
    pub(crate) groups: &'static str,
    /// `nv-cycle`; else empty.
    pub(crate) cycle: &'static str,
    /// What warnings must speak of.
    pub(crate) warns: &'static [&'static str],
}

const NONE: Expected = Expected {
    file: "",
    gpus: 0,
    pairs: "",
    numa: "",
    nics: 0,
    near: &[],
    nvswitch: Some(false),
    order: "",
    groups: "",
    cycle: "",
    warns: &[],
};

const TWO_OF_FOUR: &str = "0 1 2 3 | 4 5 6 7";
const HALVES: &str = "0 0 0 0 1 1 1 1";
const EACH_ITS_OWN: &[(usize, &[usize])] =
    &[(0, &[0]), (1, &[1]), (2, &[2]), (3, &[3]), (4, &[4]), (5, &[5]), (6, &[6]), (7, &[7])];
const FOUR_ITS_OWN: &[(usize, &[usize])] = &[(0, &[0]), (1, &[1]), (2, &[2]), (3, &[3])];
const CUBE_MESH: &str = "NV2: 03 04 12 15 23 47 56 67; NV1: 01 02 13 26 37 45 46 57; SYS: *";
const CUBE_CYCLE: &str = "0 3 2 1 5 6 7 4";

#[rustfmt::skip]
pub(crate) const EXPECTED: &[Expected] = &[
    Expected { file: "azure-ndv4-a100-vm.xml", gpus: 8, pairs: "PIX: 01 23 45 67; SYS: *", numa: "0 0 1 1 2 2 3 3", nics: 8,
        near: &[(0, &[0, 1]), (1, &[0, 1]), (2, &[2, 3]), (3, &[2, 3]), (4, &[4, 5]), (5, &[4, 5]), (6, &[6, 7]), (7, &[6, 7])],
        nvswitch: None, order: "ring", groups: "0 1 | 2 3 | 4 5 | 6 7", warns: &["order of the file"], ..NONE },
    Expected { file: "azure-ncv4-self-target.xml", gpus: 4, pairs: "SYS: *", numa: "0 1 2 3", nics: 1, order: "ring",
        warns: &["from a GPU to itself"], ..NONE },
    Expected { file: "aws-p4d-24xl.xml", gpus: 8, pairs: "PIX: 01 23 45 67; PHB: 02 03 12 13 46 47 56 57; SYS: *",
        numa: HALVES, nics: 4, near: &[(0, &[0, 1]), (1, &[2, 3]), (2, &[4, 5]), (3, &[6, 7])], nvswitch: None,
        order: "two-level", groups: TWO_OF_FOUR, warns: &["no <gpu>"], ..NONE },
    Expected { file: "aws-g5-48xl-busid-only.xml", nvswitch: None, order: "none", warns: &["9 devices"], ..NONE },
    Expected { file: "a100-8-full-dump-5nic.xml", gpus: 8, pairs: "NV12: *", numa: HALVES, nics: 5,
        near: &[(1, &[0, 1]), (2, &[2, 3]), (3, &[4, 5]), (4, &[6, 7])], nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "dgx1v-8-hybrid-cube-mesh.xml", gpus: 8, pairs: CUBE_MESH, numa: HALVES, nics: 3,
        order: "two-level", groups: TWO_OF_FOUR, cycle: CUBE_CYCLE, ..NONE },
    Expected { file: "oci-h100-8-dual-port-nics.xml", gpus: 8, pairs: "NV18: *", numa: HALVES, nics: 16,
        near: &[(0, &[0]), (1, &[0]), (2, &[1]), (3, &[1]), (4, &[2]), (5, &[2]), (6, &[3]), (7, &[3]),
            (8, &[4]), (9, &[4]), (10, &[5]), (11, &[5]), (12, &[6]), (13, &[6]), (14, &[7]), (15, &[7])],
        nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "b200-8-sandbox-dump.xml", gpus: 8, pairs: "NV18: *", numa: HALVES, nics: 13, nvswitch: Some(true),
        order: "full-mesh", ..NONE },
    Expected { file: "amd-4-xgmi-mesh.xml", gpus: 4, pairs: "NV1: *", numa: "0 0 0 0", nics: 2, order: "full-mesh",
        warns: &["xGMI"], ..NONE },
    Expected { file: "amd-8-pcie-2switch.xml", gpus: 8, pairs: "PXB: 01 02 03 12 13 23 45 46 47 56 57 67; PHB: *",
        numa: "0 0 0 0 0 0 0 0", nics: 1, near: &[(0, &[0, 1, 2, 3])], order: "ring", groups: "0 1 2 3 4 5 6 7", ..NONE },
    Expected { file: "amd-3-pcie-2numa-uneven.xml", gpus: 3, pairs: "SYS: 01 02; PHB: 12", numa: "0 1 1", nics: 1,
        order: "ring", groups: "0 | 1 2", ..NONE },

    Expected { file: "v100-8-hybrid-cube-mesh-oldformat.txt", gpus: 8, pairs: CUBE_MESH, numa: "? ? ? ? ? ? ? ?", nics: 1,
        near: &[(0, &[2, 3])], order: "two-level", groups: TWO_OF_FOUR, cycle: CUBE_CYCLE, ..NONE },
    Expected { file: "v100-8-1numa-header-shifted.txt", gpus: 8,
        pairs: "NV2: 01 02 15 23 37 45 46 67; NV1: 03 04 12 13 26 47 56 57; NODE: *", numa: "? ? ? ? ? ? ? ?", nics: 1,
        order: "ring", groups: "0 1 2 3 4 5 6 7", cycle: "0 1 5 4 6 7 3 2", ..NONE },
    Expected { file: "v100-4-nv1-nv2-mesh-numa1.txt", gpus: 4, pairs: "NV2: 01 02 13; NV1: 03 12 23", numa: "1 1 1 1",
        order: "full-mesh", ..NONE },
    Expected { file: "p100-4-power8-soc-oldformat.txt", gpus: 4, pairs: "NV2: 01 23; SYS: 02 03 12 13", numa: "? ? ? ?",
        nics: 2, order: "two-level", groups: "0 1 | 2 3", ..NONE },
    Expected { file: "a100-8-nvswitch-18nic-nps4.txt", gpus: 8, pairs: "NV12: *", numa: "3 3 1 1 7 7 5 5", nics: 18,
        near: &[(1, &[2, 3]), (2, &[2, 3]), (3, &[2, 3]), (4, &[2, 3]), (5, &[0, 1]), (6, &[0, 1]), (7, &[0, 1]), (8, &[0, 1]),
            (9, &[6, 7]), (10, &[6, 7]), (11, &[6, 7]), (12, &[6, 7]), (14, &[4, 5]), (15, &[4, 5]), (16, &[4, 5]), (17, &[4, 5])],
        nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "a100-8-pcie-nvlink-pairs-2numa.txt", gpus: 8,
        pairs: "NV12: 01 23 45 67; NODE: 02 03 12 13 46 47 56 57; SYS: *", numa: HALVES, nics: 2, order: "two-level",
        groups: TWO_OF_FOUR, ..NONE },
    Expected { file: "a100-4-nv4-direct-1numa-4nic.txt", gpus: 4, pairs: "NV4: *", numa: "0 0 0 0", nics: 4,
        near: FOUR_ITS_OWN, order: "full-mesh", ..NONE },
    Expected { file: "h100-4-nv6-direct-4numa-4nic.txt", gpus: 4, pairs: "NV6: *", numa: "3 1 7 5", nics: 4,
        near: FOUR_ITS_OWN, order: "full-mesh", ..NONE },
    Expected { file: "h800-8-nvswitch-9nic-bond.txt", gpus: 8, pairs: "NV8: *", numa: HALVES, nics: 9,
        near: EACH_ITS_OWN, nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "h20-8-nvswitch-8nic-tabs.txt", gpus: 8, pairs: "NV18: *", numa: HALVES, nics: 8, near: EACH_ITS_OWN,
        nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "gb200-4-gpu-numa-id-lists-8nic.txt", gpus: 4, pairs: "NV18: *", numa: "0 0 1 1", nics: 8,
        nvswitch: Some(true), order: "full-mesh", ..NONE },
    Expected { file: "pcie-8-pxb-node-sys-6nic-mp.txt", gpus: 8,
        pairs: "PXB: 01 23 45 67; NODE: 02 03 12 13 46 47 56 57; SYS: *", numa: HALVES, nics: 6,
        near: &[(0, &[0, 1]), (1, &[2, 3]), (2, &[2, 3]), (3, &[2, 3]), (4, &[4, 5]), (5, &[6, 7])], nvswitch: None,
        order: "two-level", groups: TWO_OF_FOUR, warns: &["-mp"], ..NONE },
    Expected { file: "rtx4090-8-all-sys-2nic-tabs.txt", gpus: 8, pairs: "SYS: *", numa: HALVES, nics: 2,
        order: "two-level", groups: TWO_OF_FOUR, ..NONE },
    Expected { file: "a40-4-pxb-pix-rocep-nics.txt", gpus: 4, pairs: "PXB: 01; PIX: 23; SYS: *", numa: "0 0 1 1", nics: 2,
        order: "two-level", groups: "0 1 | 2 3", ..NONE },
    Expected { file: "l40s-4-dual-socket-2nic.txt", gpus: 4, pairs: "NODE: 01 23; SYS: *", numa: "0 0 1 1", nics: 2,
        order: "two-level", groups: "0 1 | 2 3", ..NONE },
    Expected { file: "a6000-3-one-nvlink-pair-tabs.txt", gpus: 3, pairs: "NV4: 01; NODE: 02 12", numa: "0 0 0",
        order: "ring", ..NONE },
    Expected { file: "rtx3090-2-nv4-bridge.txt", gpus: 2, pairs: "NV4: 01", numa: "0 0", order: "full-mesh", ..NONE },
    Expected { file: "gpu5-uneven-numa.txt", gpus: 5, pairs: "SYS: 01 02 03 04; PHB: 12 34; NODE: 13 14 23 24",
        numa: "1 0 0 0 0", order: "ring", groups: "1 2 3 4 | 0", ..NONE },
    Expected { file: "t4-2-vm-blank-numa.txt", gpus: 2, pairs: "PHB: 01", numa: "? ?", order: "ring", ..NONE },
    Expected { file: "h100-1-vm-1nic.txt", gpus: 1, numa: "0", nics: 1, order: "none", ..NONE },
    Expected { file: "odd-ansi-header-6gpu-tabs.txt", gpus: 6, pairs: "PIX: 01 23 45; NODE: 02 03 12 13; SYS: *",
        numa: "0 0 0 0 1 1", order: "ring", groups: "0 1 2 3 | 4 5", ..NONE },
    Expected { file: "odd-merged-columns-a100-10nic.txt", gpus: 8, pairs: "NV12: *", numa: "3 3 1 1 7 7 5 5", nics: 10,
        near: &[(0, &[0, 1]), (1, &[0, 1]), (2, &[2, 3]), (3, &[2, 3]), (4, &[4, 5]), (5, &[4, 5]), (6, &[6, 7]), (7, &[6, 7])],
        nvswitch: Some(true), order: "full-mesh", warns: &["NIC7NIC8 is taken for 2 columns"], ..NONE },
    Expected { file: "odd-crlf-4gpu-4nic.txt", gpus: 4, pairs: "NODE: 01 23; SYS: *", numa: "0 0 1 1", nics: 4,
        order: "two-level", groups: "0 1 | 2 3", ..NONE },
];

/// Files that must be refused, and what the message must speak of.
pub(crate) const REFUSED: &[(&str, &[&str])] = &[
    ("odd-not-a-topology-graphs.xml", &["not a topology file", "<graphs>"]),
    ("odd-truncated-h200-dump.xml", &["ends early", "<nic> of line 52", "line 53, column 1"]),
    ("odd-truncated-v100-16-dgx2.txt", &["rows missing for GPU5..GPU15", "line 6"]),
];
