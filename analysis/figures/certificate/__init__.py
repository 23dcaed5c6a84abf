"""What a trace can bear: checks, one in each file or a few, and the certificate that they give."""
