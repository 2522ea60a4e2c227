//! The integrity answer: a hash from the driver. libcudart refuses to start if the hash is wrong.
//!
//! The hash is an HMAC-MD2 (RFC 2104, RFC 1319) with a fixed key. It covers facts that libcudart
//! knows, too:
//! - the versions, the process, the thread, and a time from libcudart;
//! - the addresses of two export tables;
//! - the identity of every visible GPU.

/// A GPU that the process sees: the facts that the integrity answer covers.
pub struct Gpu {
    pub uuid: [u8; 16],
    /// PCI domain, bus, device.
    pub place: [u32; 3],
}

/// All facts that the integrity answer covers, except those about the GPUs.
pub struct Question {
    pub driver_version: u32,
    pub version: u32,
    pub process: u32,
    pub thread: u32,
    pub cudart_table: usize,
    pub integrity_table: usize,
    pub function: usize,
    pub seconds: u64,
}

const KEY: [u8; 16] = [
    0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f,
];

/// Returns the integrity answer: a constant if the version in `question` ends in 0 or 1.
pub fn answer(question: &Question, gpus: &[Gpu]) -> [u64; 2] {
    match question.version % 10 {
        0 => return [0x3341_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        1 => return [0x1841_181c_03cb_675c, 0x8ed3_83aa_1f4c_d1e8],
        _ => {}
    }
    let mut message = Vec::new();
    for number in [
        question.driver_version,
        question.version,
        question.process,
        question.thread,
    ] {
        message.extend(number.to_ne_bytes());
    }
    for number in [
        question.cudart_table,
        question.integrity_table,
        question.function,
        question.seconds as usize,
    ] {
        message.extend(number.to_ne_bytes());
    }
    for gpu in gpus {
        message.extend(gpu.uuid);
        message.extend(gpu.place.iter().flat_map(|number| number.to_ne_bytes()));
    }
    let digest = hmac(&KEY, &message);
    let (low, high) = digest.split_at(8);
    [low, high].map(|half| {
        half.iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    })
}

fn hmac(key: &[u8; 16], message: &[u8]) -> [u8; 16] {
    let inner = md2(key
        .iter()
        .map(|byte| byte ^ 0x36)
        .chain(message.iter().copied()));
    md2(key.iter().map(|byte| byte ^ 0x5c).chain(inner))
}

fn md2(message: impl Iterator<Item = u8>) -> [u8; 16] {
    let mut message: Vec<u8> = message.collect();
    let padding = 16 - message.len() % 16;
    message.extend(std::iter::repeat_n(padding as u8, padding));
    let mut checksum = [0u8; 16];
    let mut last = 0;
    for block in message.chunks_exact(16) {
        for (sum, byte) in checksum.iter_mut().zip(block) {
            *sum ^= PI[usize::from(byte ^ last)];
            last = *sum;
        }
    }
    message.extend(checksum);
    let mut state = [0u8; 48];
    for block in message.chunks_exact(16) {
        for index in 0..16 {
            state[16 + index] = block[index];
            state[32 + index] = state[index] ^ block[index];
        }
        let mut carry = 0u8;
        for round in 0..18 {
            for byte in &mut state {
                *byte ^= PI[usize::from(carry)];
                carry = *byte;
            }
            carry = carry.wrapping_add(round);
        }
    }
    std::array::from_fn(|index| state[index])
}

/// The byte permutation of MD2 (RFC 1319), made of the digits of pi.
const PI: [u8; 256] = [
    0x29, 0x2e, 0x43, 0xc9, 0xa2, 0xd8, 0x7c, 0x01, 0x3d, 0x36, 0x54, 0xa1, 0xec, 0xf0, 0x06, 0x13,
    0x62, 0xa7, 0x05, 0xf3, 0xc0, 0xc7, 0x73, 0x8c, 0x98, 0x93, 0x2b, 0xd9, 0xbc, 0x4c, 0x82, 0xca,
    0x1e, 0x9b, 0x57, 0x3c, 0xfd, 0xd4, 0xe0, 0x16, 0x67, 0x42, 0x6f, 0x18, 0x8a, 0x17, 0xe5, 0x12,
    0xbe, 0x4e, 0xc4, 0xd6, 0xda, 0x9e, 0xde, 0x49, 0xa0, 0xfb, 0xf5, 0x8e, 0xbb, 0x2f, 0xee, 0x7a,
    0xa9, 0x68, 0x79, 0x91, 0x15, 0xb2, 0x07, 0x3f, 0x94, 0xc2, 0x10, 0x89, 0x0b, 0x22, 0x5f, 0x21,
    0x80, 0x7f, 0x5d, 0x9a, 0x5a, 0x90, 0x32, 0x27, 0x35, 0x3e, 0xcc, 0xe7, 0xbf, 0xf7, 0x97, 0x03,
    0xff, 0x19, 0x30, 0xb3, 0x48, 0xa5, 0xb5, 0xd1, 0xd7, 0x5e, 0x92, 0x2a, 0xac, 0x56, 0xaa, 0xc6,
    0x4f, 0xb8, 0x38, 0xd2, 0x96, 0xa4, 0x7d, 0xb6, 0x76, 0xfc, 0x6b, 0xe2, 0x9c, 0x74, 0x04, 0xf1,
    0x45, 0x9d, 0x70, 0x59, 0x64, 0x71, 0x87, 0x20, 0x86, 0x5b, 0xcf, 0x65, 0xe6, 0x2d, 0xa8, 0x02,
    0x1b, 0x60, 0x25, 0xad, 0xae, 0xb0, 0xb9, 0xf6, 0x1c, 0x46, 0x61, 0x69, 0x34, 0x40, 0x7e, 0x0f,
    0x55, 0x47, 0xa3, 0x23, 0xdd, 0x51, 0xaf, 0x3a, 0xc3, 0x5c, 0xf9, 0xce, 0xba, 0xc5, 0xea, 0x26,
    0x2c, 0x53, 0x0d, 0x6e, 0x85, 0x28, 0x84, 0x09, 0xd3, 0xdf, 0xcd, 0xf4, 0x41, 0x81, 0x4d, 0x52,
    0x6a, 0xdc, 0x37, 0xc8, 0x6c, 0xc1, 0xab, 0xfa, 0x24, 0xe1, 0x7b, 0x08, 0x0c, 0xbd, 0xb1, 0x4a,
    0x78, 0x88, 0x95, 0x8b, 0xe3, 0x63, 0xe8, 0x6d, 0xe9, 0xcb, 0xd5, 0xfe, 0x3b, 0x00, 0x1d, 0x39,
    0xf2, 0xef, 0xb7, 0x0e, 0x66, 0x58, 0xd0, 0xe4, 0xa6, 0x77, 0x72, 0xf8, 0xeb, 0x75, 0x4b, 0x0a,
    0x31, 0x44, 0x50, 0xb4, 0x8f, 0xed, 0x1f, 0x1a, 0xdb, 0x99, 0x8d, 0x33, 0x9f, 0x11, 0x83, 0x14,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        md2(text.bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Checks MD2 with the test suite of RFC 1319.
    #[test]
    fn md2_gives_the_digests_of_the_rfc() {
        assert_eq!(hex(""), "8350e5a3e24c153df2275c9f80692773");
        assert_eq!(hex("abc"), "da853b0d3f88d99b30283a69e6ded6bb");
        assert_eq!(
            hex("abcdefghijklmnopqrstuvwxyz"),
            "4e8ddff3650292ab5a4108c3aa47940b"
        );
    }

    #[test]
    fn the_answer_depends_on_every_gpu() {
        let question = Question {
            driver_version: 13_000,
            version: 12_082,
            process: 1,
            thread: 2,
            cudart_table: 3,
            integrity_table: 4,
            function: 5,
            seconds: 6,
        };
        let gpu = |byte| Gpu {
            uuid: [byte; 16],
            place: [0, 1, 0],
        };
        assert_ne!(answer(&question, &[gpu(1)]), answer(&question, &[gpu(2)]));
        assert_ne!(
            answer(&question, &[gpu(1)]),
            answer(&question, &[gpu(1), gpu(2)])
        );
    }
}
