//! Reads and writes pcap files: classic format, microseconds, this machine's byte order or not.

#![allow(dead_code, reason = "each test binary uses a part")]

/// The frames of a pcap file.
pub(crate) fn read_pcap(file: &[u8]) -> Vec<&[u8]> {
    let u32_at = match file[..4] {
        [0xD4, 0xC3, 0xB2, 0xA1] => |b: &[u8]| u32::from_le_bytes(b[..4].try_into().unwrap()),
        [0xA1, 0xB2, 0xC3, 0xD4] => |b: &[u8]| u32::from_be_bytes(b[..4].try_into().unwrap()),
        ref magic => panic!("not a pcap file: {magic:x?}"),
    };
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let captured = u32_at(&rest[8..]) as usize;
        assert_eq!(captured, u32_at(&rest[12..]) as usize, "a frame was cut short by the capture");
        frames.push(&rest[16..16 + captured]);
        rest = &rest[16 + captured..];
    }
    frames
}

/// A pcap file of Ethernet frames, one per microsecond.
pub(crate) fn write_pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(&0xA1B2_C3D4_u32.to_le_bytes());
    file.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&0x4_0000_u32.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    for (index, frame) in frames.iter().enumerate() {
        file.extend_from_slice(&0_u32.to_le_bytes());
        file.extend_from_slice(&(index as u32).to_le_bytes());
        file.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        file.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        file.extend_from_slice(frame);
    }
    file
}
