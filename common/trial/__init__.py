"""Everything for a trial on one machine: certificates, three local servers and published data sets."""
