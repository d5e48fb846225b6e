//! Decodes base64, as JSON files hold tensors.

/// The bytes of base64 with its padding (RFC 4648); `None` of anything else.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let bits = group.iter().try_fold(0, |bits, digit| Some(bits << 6 | value(*digit)?))? << (6 * (4 - group.len()));
        let all = u32::to_be_bytes(bits);
        let (held, rest) = all[1..].split_at(group.len() - 1);
        // Bits that no byte holds are 0.
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend(held);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::decode_base64;

    #[test]
    fn the_examples_of_rfc_4648_and_nothing_else() {
        let right =
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmE=", "fooba")];
        for (text, bytes) in right {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode_base64("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        for wrong in
            ["Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zh==", "Zm9=", "Zm 9", "Zm9v\n", "Zg==Zm9v", "Zm9-", "Zm9é"]
        {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
        }
    }
}
